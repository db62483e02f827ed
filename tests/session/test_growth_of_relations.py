"""Work for affinity terms, host ports and volumes is counted, not timed.

Any user who may create pods determines the number of these objects.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optsched.formats.snapshots.assembly import assemble
from optsched.plugins.scores.nodeorder import Preferences
from optsched.plugins.storage.volumes import _VolumeMatching
from optsched.plugins.topology import pod_affinity
from optsched.policy.load import load_policy
from optsched.problem.relations import PortIndex, Term
from optsched.session.session import SessionContext, run_session
from tests.formats.objects import mounting, node, pod, queue, thing

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

POLICY = load_policy("volcano-default", Path.read_text)
HOST = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NUM_NODES = 4


def num_calls(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, run: Callable[[], Any]
) -> int:
    """Return how often a function is called while `run` runs."""
    calls: Counter[str] = Counter()
    function = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return function(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, counted)
        run()
    return calls[name]


def session_of(*objects: dict[str, Any]) -> Callable[[], Any]:
    nodes = [node(f"n{i}", {HOST: f"n{i}"}) for i in range(NUM_NODES)]
    snapshot = assemble([queue("default"), *nodes, *objects]).snapshot
    assert not any(gang.problem for gang in snapshot.gangs)
    return lambda: run_session(snapshot, POLICY, SessionContext())


def small(name: str, spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": "1m"}}}
    return pod(name, {"containers": [container], **spec}, **more)


def apart(number: int, num_terms: int, kind: str = REQUIRED) -> dict[str, Any]:
    """Return a pod with terms that select every pod."""
    terms: list[dict[str, Any]] = [
        {
            "topologyKey": HOST,
            "labelSelector": {
                "matchExpressions": [{"key": f"k{number}-{j}", "operator": "DoesNotExist"}]
            },
        }
        for j in range(num_terms)
    ]
    if kind == PREFERRED:
        terms = [{"weight": 1, "podAffinityTerm": term} for term in terms]
    return small(f"p{number}", {"affinity": {"podAntiAffinity": {kind: terms}}})


def test_host_ports_are_looked_up_a_few_times_for_each_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    pods = [
        small(
            f"p{i}", {"containers": [{"name": "c", "ports": [port(20 * i + j) for j in range(20)]}]}
        )
        for i in range(20)
    ]
    number = num_calls(monkeypatch, PortIndex, "find_colliding", session_of(*pods))
    assert 0 < number < 10 * len(pods)


def port(number: int) -> dict[str, Any]:
    return {"hostPort": 1000 + number, "containerPort": 80}


def test_terms_of_other_labels_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 40 jobs keeps its own pods apart."""

    def job(name: str) -> dict[str, Any]:
        term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"job": name}}}
        spec = {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}
        return small(name, spec, labels={"job": name})

    jobs = [job(f"j{i}") for i in range(40)]
    assert num_calls(monkeypatch, Term, "selects", session_of(*jobs)) <= 3 * 40


def test_all_anti_affinity_of_a_topology_key_is_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (
        num_calls(
            monkeypatch,
            pod_affinity,
            "_mask_domains",
            session_of(*(apart(i, num_terms) for i in range(3))),
        )
        for num_terms in (1, 50)
    )
    assert 0 < many == few


def test_all_preferences_of_a_topology_key_are_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (
        num_calls(
            monkeypatch,
            Preferences,
            "_by_domain",
            session_of(*(apart(i, num_terms, PREFERRED) for i in range(3))),
        )
        for num_terms in (1, 50)
    )
    assert 0 < many == few


def test_volumes_are_matched_once_for_nodes_that_reach_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims = [f"c{i}" for i in range(5)]
    size = {"storage": "1Gi"}
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": "wait"}
    bodies = [
        thing(
            "v1",
            "PersistentVolumeClaim",
            name,
            "ns",
            spec={**common, "resources": {"requests": size}},
        )
        for name in claims
    ]
    volumes = [
        thing("v1", "PersistentVolume", f"v{i}", spec={**common, "capacity": size})
        for i in range(8)
    ]
    waits = {"provisioner": "none", "volumeBindingMode": "WaitForFirstConsumer"}
    kind = thing("storage.k8s.io/v1", "StorageClass", "wait", **waits)
    session = session_of(kind, *bodies, *volumes, small("p", mounting(*claims)))
    number = num_calls(monkeypatch, _VolumeMatching, "_add_user", session)
    assert 0 < number <= 2 * len(claims) * 3
