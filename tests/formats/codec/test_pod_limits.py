from __future__ import annotations

from typing import Any

from optsched.cluster.snapshot import Quota
from optsched.formats.codec.pod_limits import parse_quota


def quota(spec: dict[str, Any], status: dict[str, Any] | None = None) -> dict[str, Any]:
    meta = {"name": "q", "namespace": "a"}
    obj = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": spec}
    return {**obj, "status": status} if status else obj


def test_what_the_server_has_taken_over_counts():
    found, errors = parse_quota(
        quota(
            {"hard": {"cpu": "8"}},
            {"hard": {"cpu": "4", "requests.memory": "1Ki"}, "used": {"cpu": "500m"}},
        )
    )
    assert errors == ()
    assert found == Quota("a/q", (("cpu", 4000), ("requests.memory", 1024)), (("cpu", 500),))


def test_before_that_what_is_wanted_counts():
    assert parse_quota(quota({"hard": {"pods": "3"}}))[0] == Quota("a/q", (("pods", 3),))


def test_quotas_with_scopes_are_left_to_the_server():
    selector = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]}
    for scopes in ({"scopes": ["BestEffort"]}, {"scopeSelector": selector}):
        assert parse_quota(quota({"hard": {"pods": "3"}, **scopes})) == (None, ())


def test_amounts_that_can_not_be_read_are_told():
    found, errors = parse_quota(quota({"hard": {"cpu": "many", "pods": 2}}))
    assert found == Quota("a/q", (("pods", 2),))
    assert [e.path for e in errors] == ["spec.hard[cpu]"]
