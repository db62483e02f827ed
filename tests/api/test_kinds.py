from __future__ import annotations

import pytest

from optsched.api import kinds
from optsched.api.kinds import KINDS, Kind, collection_path, find_kind, object_path


@pytest.mark.parametrize(
    ("kind", "namespace", "path"),
    [
        (kinds.POD, None, "/api/v1/pods"),
        (kinds.POD, "ml", "/api/v1/namespaces/ml/pods"),
        (kinds.NODE, None, "/api/v1/nodes"),
        (kinds.QUEUE, None, "/apis/scheduling.volcano.sh/v1beta1/queues"),
        (kinds.POD_GROUP, "ml", "/apis/scheduling.volcano.sh/v1beta1/namespaces/ml/podgroups"),
        (kinds.PRIORITY_CLASS, None, "/apis/scheduling.k8s.io/v1/priorityclasses"),
        (kinds.LEASE, "kube-system", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"),
        (kinds.POD_DISRUPTION_BUDGET, None, "/apis/policy/v1/poddisruptionbudgets"),
        (kinds.STORAGE_CLASS, None, "/apis/storage.k8s.io/v1/storageclasses"),
    ],
)
def test_collections_are_where_the_api_server_keeps_them(
    kind: Kind, namespace: str | None, path: str
):
    assert collection_path(kind, namespace) == path


def test_objects_and_their_parts():
    assert object_path(kinds.NODE, None, "n1") == "/api/v1/nodes/n1"
    assert object_path(kinds.POD, "ml", "a", "binding") == "/api/v1/namespaces/ml/pods/a/binding"
    assert object_path(kinds.POD, "ml", "../x") == "/api/v1/namespaces/ml/pods/..%2Fx"


def test_a_path_needs_a_namespace_exactly_where_the_kind_has_one():
    with pytest.raises(ValueError, match="Queue is cluster-scoped"):
        collection_path(kinds.QUEUE, "ml")
    with pytest.raises(ValueError, match="Queue is cluster-scoped"):
        object_path(kinds.QUEUE, "ml", "q")
    with pytest.raises(ValueError, match="needs a namespace"):
        object_path(kinds.POD, None, "a")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_is_found_by_what_its_objects_say(kind: Kind):
    assert find_kind(kind.api_version, kind.kind) is kind


def test_a_stranger_is_not_found():
    assert find_kind("v1", "Queue") is None
