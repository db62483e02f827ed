"""Nodes that already hold images or data sets come first in both engines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.node_resources import RequiredData, Store
from optsched.plugins.scores.nodeorder import DataLocality, NodeOrder
from optsched.policy.load import parse_policy
from optsched.problem.compile import compile_problem
from optsched.session.session import SessionContext, run_session
from optsched.session.session_input import with_required_data
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.small import cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang, Node, Snapshot

MIB = 1 << 20
SOLVING = SessionContext(solver=InProcess(), limits=Limits(budget_ms=None, num_workers=1))
BOTH = (NodeOrder(), DataLocality())

both_engines = pytest.mark.parametrize("solver", ["none", "cpsat"])


def holding(name: str, cpu: int = 4, *datasets: str, **images: int) -> Node:
    """Return a node with images of the given MiB, and data sets."""
    sized = tuple((f"{image}:1", size * MIB) for image, size in sorted(images.items()))
    return replace(node(name, cpu), store=Store(sized, datasets))


def wanting(name: str, number: int, wants: RequiredData, **fields: object) -> Gang:
    made = gang(name, ("w", number, shape(1)), **fields)
    return replace(made, tasks=tuple(replace(t, wants=wants) for t in made.tasks))


def scores(rule: NodeOrder | DataLocality, snapshot: Snapshot) -> list[float] | None:
    found = rule.class_score(compile_problem(with_required_data(snapshot, [rule])), 0)
    return None if found is None else found.tolist()


# --- scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "held", "expected"),
    [
        # One of two nodes holds the image, so half of 523 MiB counts: (261.5 − 23) of (1000 − 23).
        (("a:1",), [{"a": 523}, {}], [24, 0]),
        (("a:1",), [{"a": 46}, {}], [0, 0]),
        (("a:1",), [{"a": 4000}, {}], [100, 0]),
        # With two containers, the full score requires twice as much.
        (("a:1", ""), [{"a": 4000}, {}], [100, 0]),
        (("a:1", "b:1"), [{"a": 1046, "b": 954}, {"a": 1046}], [75, 51]),
        (("a:1",), [{"a": 523}, {"a": 523}], None),
        (("z:1",), [{"a": 523}, {}], None),
    ],
)
def test_images_count_as_in_kubernetes(
    images: tuple[str, ...], held: list[dict[str, int]], expected: list[float] | None
) -> None:
    nodes = [holding(f"n{i}", **images_) for i, images_ in enumerate(held)]
    snapshot = cluster(nodes, [wanting("g", 1, RequiredData(images))])
    plain = NodeOrder(*[0] * 7)
    assert scores(plain, snapshot) == expected
    if expected is not None:
        twice = replace(plain, image_locality=2)
        assert scores(twice, snapshot) == [2 * score for score in expected]
    assert scores(replace(plain, image_locality=0), snapshot) is None


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (("maps",), [100, 0, 100]),
        (("atlas", "maps"), [50, 0, 100]),
        (("atlas", "laion", "maps"), [33, 0, 66]),
        (("laion",), None),
        ((), None),
    ],
)
def test_nodes_count_by_the_part_of_the_data_sets_that_they_hold(
    wanted: tuple[str, ...], expected: list[float] | None
) -> None:
    nodes = [holding("n0", 4, "maps"), node("n1"), holding("n2", 4, "atlas", "maps")]
    snapshot = cluster(nodes, [wanting("g", 1, RequiredData((), wanted))])
    assert scores(DataLocality(), snapshot) == expected
    assert scores(DataLocality(0), snapshot) is None


def test_a_podgroup_may_name_the_data_sets_of_its_pods() -> None:
    nodes = [holding("n0", 4, "maps"), node("n1")]
    made = wanting("g", 1, RequiredData(), annotations={"optsched.io/datasets": "maps"})
    assert scores(DataLocality(), cluster(nodes, [made])) == [100, 0]


# --- classes -------------------------------------------------------------------------------------


def test_tasks_stay_alike_where_nodes_do_not_differ() -> None:
    gangs = [wanting(name, 1, RequiredData((f"{name}:1",), (name,))) for name in ("a", "b", "c")]
    held = cluster([holding("n0", 4, "a", a=500, c=500), holding("n1", c=500)], gangs)
    assert with_required_data(held, []) is held
    assert with_required_data(held, [NodeOrder(image_locality=0), DataLocality(0)]) is held
    assert with_required_data(cluster([node("n0"), node("n1")], gangs), BOTH).gangs == tuple(gangs)
    classes = compile_problem(with_required_data(held, BOTH)).classes
    assert {s.wants for s in classes.shapes} == {RequiredData(("a:1",), ("a",)), RequiredData()}
    assert len(compile_problem(with_required_data(held, BOTH)).classes.shapes) == 2


def test_what_runs_is_left_as_it_is() -> None:
    made = wanting("g", 2, RequiredData(("a:1",)))
    first, second = made.tasks
    held = cluster(
        [holding("n0", a=500), node("n1")], [replace(made, tasks=(running(first, "n0"), second))]
    )
    tasks = with_required_data(held, BOTH).gangs[0].tasks
    assert [t.shape.wants.images for t in tasks] == [(), ("a:1",)]
    assert with_required_data(held, BOTH).nodes == held.nodes


# --- plans ---------------------------------------------------------------------------------------

POLICY = """
actions: "enqueue, allocate"
tiers:
- plugins: [{{name: gang}}]
- plugins: [{{name: predicates}}, {{name: nodeorder}}, {{name: data-locality, arguments: {{data-locality.weight: 5}}}}]
solver: {solver}
"""  # noqa: E501


@both_engines
@pytest.mark.parametrize(
    "wants", [RequiredData(("a:1",)), RequiredData((), ("maps",))], ids=["image", "data"]
)
def test_pods_go_where_what_they_need_is(solver: str, wants: RequiredData) -> None:
    # The second node has more idle capacity, so nodeorder alone would prefer it.
    nodes = [holding("n0", 4, "maps", a=4000), node("n1", 6)]
    policy = parse_policy(POLICY.format(solver=solver), "test.conf")
    for asked, where in ((wants, {"n0"}), (RequiredData(), {"n1"})):
        snapshot = cluster(nodes, [wanting("g", 1, asked), wanting("waits", 20, RequiredData())])
        report = run_session(snapshot, policy, SOLVING)
        assert report.trace.violations == ()
        assert set(report.plan.binds.values()) == where
