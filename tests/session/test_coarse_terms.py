"""The number of terms of running pods that a session compares with pending pods is limited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched.formats.snapshots.assembly import assemble
from optsched.problem.relations import Term
from optsched.session.coarse_terms import MOST_ALIKE, with_coarse_terms
from optsched.session.session import SessionContext, run_session
from tests.formats.objects import node, pod, queue
from tests.plugins.test_device_claims import POLICY
from tests.session.test_dear_objects import PREFERRED, REQUIRED, near
from tests.session.test_growth_of_relations import num_calls

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from optsched.cluster.snapshot import Snapshot

HOST = "kubernetes.io/hostname"
WIDE: dict[str, Any] = {"namespaceSelector": {}}


def labelled(index: int) -> dict[str, Any]:
    """Return a term that only pods of one job meet."""
    return {
        "topologyKey": HOST,
        "labelSelector": {"matchLabels": {"app": "training", "job": str(index)}},
    }


def running(
    term: Callable[[int], dict[str, Any]], number: int, kind: str = REQUIRED, each: int = 50
) -> list[dict[str, Any]]:
    """Return running pods of namespace `bad` on node n0 with many terms."""
    found = []
    for i in range(0, number, each):
        terms = [term(j) for j in range(i, min(i + each, number))]
        if kind == PREFERRED:
            terms = [{"weight": 1, "podAffinityTerm": each} for each in terms]
        spec = {
            "nodeName": "n0",
            "containers": [{"name": "c", "image": "i"}],
            "affinity": {"podAntiAffinity": {kind: terms}},
        }
        found.append(pod(f"r{i}", spec, {"phase": "Running"}, namespace="bad"))
        found[-1]["metadata"]["labels"] = {"pod": str(i)}
    return found


def cluster(*pods: dict[str, Any]) -> Snapshot:
    nodes = [node(f"n{i}", {HOST: f"n{i}"}) for i in range(2)]
    return assemble([*nodes, queue("default"), *pods]).snapshot


def plain(namespace: str = "good", number: int = 10) -> list[dict[str, Any]]:
    return [pod(f"p{i}", namespace=namespace) for i in range(number)]


def comparisons(monkeypatch: pytest.MonkeyPatch, number: int) -> int:
    """Return how often a live session compares a pod with a term."""
    pods = running(lambda i: {**near(i), **WIDE}, number)
    snapshot = cluster(*pods, *plain())
    context = SessionContext(period_ms=1000)
    return num_calls(monkeypatch, Term, "selects", lambda: run_session(snapshot, POLICY, context))


def test_a_session_compares_a_limited_number_of_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    few = comparisons(monkeypatch, MOST_ALIKE)
    assert 0 < comparisons(monkeypatch, 10 * MOST_ALIKE) <= 2 * few


def test_terms_that_select_no_pending_pod_are_compared_with_no_running_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshot = cluster(*running(near, MOST_ALIKE), *plain())
    assert not num_calls(
        monkeypatch, Term, "selects", lambda: run_session(snapshot, POLICY, SessionContext())
    )


def test_terms_within_the_limit_are_exact() -> None:
    snapshot = cluster(*running(near, MOST_ALIKE), *running(near, 10, PREFERRED))
    assert with_coarse_terms(snapshot) == (snapshot, 0)
    many = cluster(*running(labelled, 5 * MOST_ALIKE))
    assert with_coarse_terms(many) == (many, 0)


def test_further_terms_exclude_more_pods_but_none_fewer() -> None:
    """A term of the own namespace excludes no pods of other namespaces."""
    own, wide = near, lambda i: {**near(i), **WIDE}
    number = MOST_ALIKE + 50

    def binds(*pods: dict[str, Any]) -> set[str]:
        report = run_session(cluster(*pods), POLICY, SessionContext(period_ms=1000))
        assert not report.trace.violations
        (limitation,) = report.plan.certificate.limitations
        assert limitation.endswith("beyond the limit: 50 affinity terms of running pods")
        return set(report.plan.binds.values())

    selecting_none: Callable[[int], dict[str, Any]] = lambda i: {  # noqa: E731
        "topologyKey": HOST,
        "labelSelector": {"matchExpressions": [{"key": f"k{i}", "operator": "Exists"}]},
    }
    assert binds(*running(own, number), *plain()) == {"n0", "n1"}
    assert binds(*running(own, number), *plain("bad")) == {"n1"}
    assert binds(*running(wide, number), *plain()) == {"n1"}
    assert binds(*running(selecting_none, number), *plain("bad")) == {"n1"}


def test_preferences_beyond_the_limit_are_ignored() -> None:
    snapshot, number = with_coarse_terms(cluster(*running(near, MOST_ALIKE + 50, PREFERRED)))
    assert number == 50
    kept = [each for t in snapshot.nodes[0].residents for each in t.shape.preferred_pods]
    assert len(kept) == MOST_ALIKE


def test_a_replay_reads_every_term() -> None:
    pods = running(near, MOST_ALIKE + 50)
    report = run_session(cluster(*pods, *plain("bad")), POLICY, SessionContext())
    assert not report.plan.certificate.limitations
