"""Deprecated method names of custom rules still work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from optsched.plugin import Ledger, Queue, Snapshot, Switch, View, World
from optsched.plugins.extension_points import Greedy, NodeModel, Rule
from optsched.problem.compile import compile_problem
from tests.support.small import cluster, gang, node, shape

if TYPE_CHECKING:
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem


def model(form: object) -> NodeModel:
    nothing = cast("Any", None)
    return NodeModel(nothing, nothing, nothing, np.zeros((1, 1), np.int64), form=cast("Any", form))


def test_encode_nodes_constrains_the_model_of_the_session_alone() -> None:
    with pytest.warns(DeprecationWarning, match="Old.encode_nodes is deprecated"):

        class Old(Rule):
            name = "old"

            def encode_nodes(self, form: Formulation, supplied: I64) -> None:
                found.append((form, supplied.shape))

    found: list[object] = []
    form = SimpleNamespace()
    Old().constrain_nodes(model(form))
    Old().constrain_nodes(model(None))
    assert found == [(form, (1, 1))]


def test_hard_face_names_the_switch_of_the_hard_part() -> None:
    with pytest.warns(DeprecationWarning, match="optsched.plugin.Face is deprecated"):
        from optsched.plugin import Face
    with pytest.warns(DeprecationWarning, match="Old.hard_face is deprecated: use hard_switch"):

        class Old(Rule):
            name = "old"
            hard_face = Face.PREDICATE

    assert Old.hard_switch is Switch.PREDICATE


def test_tells_apart_distinguishes_gangs() -> None:
    with pytest.warns(DeprecationWarning, match="Old.tells_apart is deprecated"):

        class Old(Rule):
            name = "old"

            def tells_apart(self, problem: Problem) -> Bool:
                return np.array([True, False])

    assert Old().distinguish_gangs(cast("Any", None)).tolist() == [True, False]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("room", "max_tasks"),
        ("placed", "record_placement"),
        ("filled", "record_tasks"),
        ("promised", "record_nomination"),
        ("leaves", "record_eviction"),
        ("enqueued", "record_enqueued"),
    ],
)
def test_old_names_of_the_greedy_pipeline(old: str, new: str) -> None:
    def method(self: Greedy) -> str:
        return old

    with pytest.warns(DeprecationWarning, match=f"Old.{old} is deprecated: use {new}"):
        made = type("Old", (Greedy,), {old: method})
    assert getattr(made(), new)() == old


def test_old_masks_are_one_method() -> None:
    with pytest.warns(DeprecationWarning, match="Old.live_mask is deprecated: use fits"):

        class Old(Greedy):
            def live_mask(self, task_class: int) -> Bool | None:
                return np.array([True, True, False]) if task_class else None

            def later_mask(self, task_class: int) -> Bool:
                return np.array([False, True, True])

            def open_nodes(self, gang: int, task_class: int) -> Bool:
                return np.array([gang > 1, True, True])

    def fits(gang: int, task_class: int, *, later: bool) -> list[bool] | None:
        nodes = Old().fits(gang, task_class, later=later)
        return None if nodes is None else nodes.tolist()

    assert Old.fits_later
    assert fits(-1, 0, later=False) is None
    assert fits(-1, 1, later=False) == [True, True, False]
    assert fits(-1, 0, later=True) == [False, True, True]
    assert fits(0, 0, later=False) == [False, True, True]
    assert fits(0, 1, later=False) == [False, True, False]
    assert fits(2, 1, later=False) == [True, True, False]


def test_a_rule_with_the_new_name_is_not_warned_about() -> None:
    class New(Rule):
        name = "new"

        def constrain_nodes(self, nodes: NodeModel) -> None:
            """Add no constraints."""

    assert New.constrain_nodes is not Rule.constrain_nodes


def test_old_names_of_nominations() -> None:
    world = World(Snapshot(0), ())
    view = View(Snapshot(0), (), {}, {}, {}, {"ns/p": "n1"})
    with pytest.warns(DeprecationWarning, match="World.promises is deprecated: use nominat"):
        assert world.promises == world.nominations
    with pytest.warns(DeprecationWarning, match="View.promised is deprecated: use nominated"):
        assert view.promised == {"ns/p": "n1"}


def test_the_old_method_for_descendants_of_a_queue() -> None:
    parent, child = Queue("a"), Queue("a1", parent="a")
    world = World(Snapshot(0, queues=(parent, child)), ())
    with pytest.warns(DeprecationWarning, match="World.descendants is deprecated: read descend"):
        assert world.descendants(parent) == ["a", "a1"]
    with pytest.warns(DeprecationWarning, match="World.descendants is deprecated"):
        assert world.descendants(Queue("absent")) == []
    assert world.descendants_by_queue == {"a": ["a", "a1"], "a1": ["a1"]}


def test_the_old_log_of_queues() -> None:
    made = gang("g", ("", 1, shape()), queue="a")
    snapshot = cluster([node("n1", cpu=2)], [made], [Queue("a")])
    ledger = Ledger(compile_problem(snapshot))
    ledger.record_placement(0, 0, 1)
    with pytest.warns(DeprecationWarning, match="Ledger.queue_log is deprecated: look up"):
        assert ledger.queue_log == [0]
