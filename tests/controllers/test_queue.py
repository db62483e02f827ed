"""The states of queues, tested by tables and by simulation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.api.kinds import COMMAND, POD_GROUP, QUEUE, Ref
from optsched.controllers.queue import QUEUES
from tests.support.memory import MemoryWorld

MARK = "volcano.sh/closed-by-parent"


def queue(world: MemoryWorld, name: str, state: str | None = None, parent: str = "root") -> None:
    obj = {"metadata": {"name": name}, "spec": {"weight": 1}}
    if name != "root":
        obj["spec"]["parent"] = parent
    if state is not None:
        obj["status"] = {"state": state, "running": 3}
    world.put(QUEUE, obj)


def group(world: MemoryWorld, name: str, queue: str, phase: str = "Running") -> None:
    world.put(
        POD_GROUP,
        {"metadata": {"name": name}, "spec": {"queue": queue}, "status": {"phase": phase}},
    )


def ask(world: MemoryWorld, action: str, name: str, uid: str | None = None) -> None:
    number = len(world.listed(COMMAND))
    target = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "name": name}
    known = world.get(QUEUE, "", name)
    target["uid"] = uid if uid is not None else known["metadata"]["uid"] if known else "gone"
    world.put(
        COMMAND,
        {"metadata": {"name": f"c{number}-{action.lower()}"}, "action": action, "target": target},
    )


def settle(world: MemoryWorld, rounds: int = 20) -> None:
    """Reconcile all queues until no further write happens."""
    for _ in range(rounds):
        before = len(world.writes)
        for name in [q["metadata"]["name"] for q in world.listed(QUEUE)]:
            world.apply(QUEUES.decide(Ref(QUEUE, "", name), world))
        if len(world.writes) == before:
            return
    raise AssertionError("they never come to rest")


def states(world: MemoryWorld) -> dict[str, str]:
    return {q["metadata"]["name"]: q.get("status", {}).get("state") for q in world.listed(QUEUE)}


@pytest.mark.parametrize(
    ("state", "action", "phases", "expected"),
    [
        (None, None, [], "Open"),
        ("", None, ["Running"], "Open"),
        ("Open", None, ["Running"], "Open"),
        ("Open", "CloseQueue", ["Running"], "Closing"),
        ("Open", "CloseQueue", ["Inqueue"], "Closing"),
        ("Open", "CloseQueue", ["Completed"], "Closed"),
        ("Open", "CloseQueue", [], "Closed"),
        ("Open", "OpenQueue", [], "Open"),
        ("Open", "SyncQueue", [], "Open"),
        ("Closing", None, ["Running"], "Closing"),
        ("Closing", None, [], "Closed"),
        ("Closing", "OpenQueue", ["Running"], "Open"),
        ("Closing", "CloseQueue", ["Pending"], "Closing"),
        ("Closed", None, [], "Closed"),
        ("Closed", None, ["Running"], "Closing"),
        ("Closed", "OpenQueue", [], "Open"),
        ("Closed", "CloseQueue", [], "Closed"),
        ("Unknown", None, ["Running"], "Open"),
        ("Unknown", "CloseQueue", ["Running"], "Closing"),
        ("Unknown", "OpenQueue", [], "Open"),
        ("nonsense", None, [], "Open"),
    ],
)
def test_a_queue_changes_its_state(
    state: str | None, action: str | None, phases: list[str], expected: str
) -> None:
    world = MemoryWorld()
    queue(world, "q", state)
    for i, phase in enumerate(phases):
        group(world, f"g{i}", "q", phase)
    if action:
        ask(world, action, "q")
    settle(world)
    assert states(world) == {"q": expected}
    assert world.listed(COMMAND) == []
    assert world.refused == []


def test_the_counts_of_the_scheduler_stay() -> None:
    world = MemoryWorld()
    queue(world, "q", "Open")
    ask(world, "CloseQueue", "q")
    settle(world)
    assert world.get(QUEUE, "", "q")["status"] == {"state": "Closed", "running": 3}


def test_a_queue_that_is_as_it_should_be_is_not_written() -> None:
    world = MemoryWorld()
    queue(world, "q", "Open")
    assert QUEUES.decide(Ref(QUEUE, "", "q"), world) == ()


def test_a_queue_without_a_parent_gets_the_root() -> None:
    world = MemoryWorld()
    queue(world, "root", "Open")
    queue(world, "q", "Open", parent="")
    settle(world)
    assert world.get(QUEUE, "", "q")["spec"] == {"weight": 1, "parent": "root"}
    assert "parent" not in world.get(QUEUE, "", "root")["spec"]


def test_closing_a_parent_closes_all_below_it_and_opening_it_opens_those_again() -> None:
    world = MemoryWorld()
    queue(world, "root", "Open")
    queue(world, "dept", "Open")
    queue(world, "team", "Open", parent="dept")
    queue(world, "own", "Open", parent="dept")
    group(world, "g", "team")
    ask(world, "CloseQueue", "own")
    settle(world)
    ask(world, "CloseQueue", "dept")
    settle(world)
    expected = {"root": "Open", "dept": "Closing", "team": "Closing", "own": "Closed"}
    assert states(world) == expected
    marks = {q["metadata"]["name"]: q["metadata"].get("annotations") for q in world.listed(QUEUE)}
    assert marks == {"root": None, "dept": None, "team": {MARK: "true"}, "own": None}

    group(world, "g", "team", "Completed")
    settle(world)
    assert states(world) == {"root": "Open", "dept": "Closed", "team": "Closed", "own": "Closed"}

    ask(world, "OpenQueue", "dept")
    settle(world)
    assert states(world) == {"root": "Open", "dept": "Open", "team": "Open", "own": "Closed"}
    assert world.get(QUEUE, "", "team")["metadata"]["annotations"] == {}


def test_a_queue_under_a_closed_parent_is_not_opened() -> None:
    world = MemoryWorld()
    queue(world, "dept", "Closed")
    queue(world, "team", "Closed", parent="dept")
    ask(world, "OpenQueue", "team")
    settle(world)
    assert states(world) == {"dept": "Closed", "team": "Closed"}
    [event] = world.events
    assert (event.name, event.reason, event.type) == ("team", "OpenQueue", "Warning")
    assert "its parent dept" in event.message
    assert world.listed(COMMAND) == []


def test_the_root_is_not_closed() -> None:
    world = MemoryWorld()
    queue(world, "root", "Open")
    ask(world, "CloseQueue", "root")
    settle(world)
    assert states(world) == {"root": "Open"}
    assert [event.reason for event in world.events] == ["CloseQueue"]


def test_a_word_that_is_no_action_is_told() -> None:
    world = MemoryWorld()
    queue(world, "q", "Open")
    ask(world, "AbortJob", "q")
    settle(world)
    [event] = world.events
    assert event.message == (
        "AbortJob is not valid for queues: use OpenQueue, CloseQueue, SyncQueue"
    )
    assert world.listed(COMMAND) == []


def test_the_last_of_several_commands_counts() -> None:
    world = MemoryWorld()
    queue(world, "q", "Open")
    ask(world, "CloseQueue", "q")
    world.passes(5)
    ask(world, "OpenQueue", "q")
    settle(world)
    assert states(world) == {"q": "Open"}


def test_a_command_for_an_earlier_queue_of_that_name_does_nothing() -> None:
    world = MemoryWorld()
    queue(world, "q", "Open")
    ask(world, "CloseQueue", "q", uid="another")
    settle(world)
    assert states(world) == {"q": "Open"}
    assert world.listed(COMMAND) == []


def test_a_command_for_no_queue_goes_after_a_while() -> None:
    world = MemoryWorld()
    ask(world, "CloseQueue", "none")
    ref = Ref(QUEUE, "", "none")
    world.apply(QUEUES.decide(ref, world))
    assert len(world.listed(COMMAND)) == 1
    world.passes(world.agains[0].after_s)
    world.apply(QUEUES.decide(ref, world))
    assert world.listed(COMMAND) == []


def test_what_somebody_wrote_in_between_is_not_overwritten() -> None:
    world = MemoryWorld()
    queue(world, "q", "")
    effects = QUEUES.decide(Ref(QUEUE, "", "q"), world)
    world.change(Ref(QUEUE, "", "q"), lambda q: q.update(status={"state": "Closed"}))
    assert not world.apply(effects)
    settle(world)
    assert states(world) == {"q": "Closed"}


def wakes(kind, obj, world: MemoryWorld) -> set[str]:
    return {ref.name for ref in QUEUES.wakes[kind](obj, world)}


def test_only_what_matters_wakes_a_queue() -> None:
    world = MemoryWorld()
    queue(world, "open", "Open")
    queue(world, "closing", "Closing")
    queue(world, "child", "Open", parent="closing")
    for name in ("open", "closing"):
        group(world, f"g-{name}", name)
    found = {g["metadata"]["name"]: wakes(POD_GROUP, g, world) for g in world.listed(POD_GROUP)}
    assert found == {"g-open": set(), "g-closing": {"closing"}}
    assert wakes(QUEUE, world.get(QUEUE, "", "child"), world) == {"closing"}
    assert wakes(QUEUE, world.get(QUEUE, "", "closing"), world) == {"child"}
    ask(world, "CloseQueue", "open")
    assert wakes(COMMAND, world.listed(COMMAND)[0], world) == {"open"}


TREE = {"root": "", "a": "root", "b": "root", "a1": "a", "a2": "a", "a11": "a1"}


def crash(world: MemoryWorld, cuts: list[int]) -> None:
    """Reconcile all queues repeatedly, and drop some effects of each reconciliation."""
    for cut in cuts:
        for name in sorted(TREE):
            world.apply(QUEUES.decide(Ref(QUEUE, "", name), world)[:cut])


def assert_sound(name: str, found: dict[str, str], busy: set[str]) -> None:
    """Check that the state of a queue fits its parent and its remaining children and PodGroups."""
    parent = TREE[name]
    left = [c for c, p in TREE.items() if p == name and found[c] != "Closed"]
    left += [name] * (name in busy)
    if parent and found[parent] != "Open":
        assert found[name] != "Open"
    assert found[name] == "Open" or (found[name] == "Closing") == bool(left)


@given(
    asked=st.lists(
        st.tuples(st.sampled_from(["OpenQueue", "CloseQueue"]), st.sampled_from(sorted(TREE))),
        max_size=6,
    ),
    busy=st.sets(st.sampled_from(sorted(TREE))),
    cuts=st.lists(st.integers(0, 3), max_size=12),
)
def test_a_tree_comes_to_rest_whatever_is_asked_and_wherever_it_crashes(
    asked: list[tuple[str, str]], busy: set[str], cuts: list[int]
) -> None:
    found = []
    for crashes in ([], cuts):
        world = MemoryWorld()
        for name, parent in TREE.items():
            queue(world, name, "Open", parent)
        for name in busy:
            group(world, f"g-{name}", name)
        for action, name in asked:
            ask(world, action, name)
            crash(world, crashes)
            settle(world, 40)
        found.append(states(world))
    assert found[0] == found[1]
    for name in TREE:
        assert_sound(name, found[0], busy)
