"""Tests of the object store that controllers read."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from optsched.api.kinds import CONFIG_MAP, JOB, JOB_FLOW, KUBERNETES_JOB, POD, QUEUE, Kind, Ref
from optsched.controllers.controller import Index, Scope, World
from optsched.kube.cache.object_store import Store
from optsched.kube.cache.reflector import Changed, Deleted, Listed
from tests.kube.fakes import FakeClock

NODE_OF = Index(POD, "node", lambda pod: [pod["spec"]["node"]] if "node" in pod["spec"] else [])


def pod(name: str, version: int | str = 1, uid: str = "", **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "x", "uid": uid or f"uid-{name}"}
    return {"metadata": {**meta, "resourceVersion": str(version)}, "spec": spec}


def owned(name: str, owner: str) -> dict[str, Any]:
    obj = pod(name)
    obj["metadata"]["ownerReferences"] = [
        {"apiVersion": JOB.api_version, "kind": "Job", "uid": owner, "controller": True},
        {"apiVersion": JOB.api_version, "kind": "Job", "uid": "other"},
    ]
    return obj


class Told(list[tuple[str | None, str | None]]):
    """The version pairs of the changes that a store reported."""

    def __call__(self, _: Kind, before: Any, after: Any) -> None:
        self.append(tuple(o and o["metadata"]["resourceVersion"] for o in (before, after)))


def make(told: Told | None = None) -> Store:
    return Store((POD, QUEUE), (NODE_OF,), FakeClock(), Told() if told is None else told)


def names(objs: Any) -> list[str]:
    return sorted(obj["metadata"]["name"] for obj in objs)


def test_an_answer_that_comes_after_the_end_brings_nothing_back() -> None:
    told = Told()
    store = make(told)
    store.apply(POD, Listed((pod("a"),)))
    store.apply(POD, Deleted(pod("a", 3)))
    leaving = pod("a", 2)
    leaving["metadata"]["deletionTimestamp"] = "2026-11-21T15:53:46Z"
    store.record_written(POD, leaving)
    assert store.get(POD, "x", "a") is None
    store.record_written(POD, pod("a", 4, uid="another"))
    assert store.get(POD, "x", "a") is not None
    assert told == [(None, "1"), ("1", None), (None, "4")]


def test_objects_are_found_by_name_namespace_owner_and_index() -> None:
    store = make()
    world: World = store
    other = pod("c")
    other["metadata"]["namespace"] = "y"
    store.apply(POD, Listed((pod("a", node="n"), owned("b", "u"), other)))
    assert world.get(POD, "x", "a")["spec"] == {"node": "n"}
    assert world.get(POD, "y", "a") is None
    assert (names(world.listed(POD)), names(world.listed(POD, "x"))) == (
        ["a", "b", "c"],
        ["a", "b"],
    )
    assert names(world.owned_by(POD, JOB, "u")) == ["b"]
    assert names(world.owned_by(POD, JOB, "other")) == []
    assert names(world.owned_by(POD, JOB_FLOW, "u")) == []
    assert names(world.owned_by(POD, KUBERNETES_JOB, "u")) == []
    assert names(world.list_indexed(NODE_OF, "n")) == ["a"]
    store.apply(POD, Changed(pod("a", 2, node="m")))
    assert (names(world.list_indexed(NODE_OF, "n")), names(world.list_indexed(NODE_OF, "m"))) == (
        [],
        ["a"],
    )
    store.apply(POD, Deleted(pod("a", 3)))
    assert names(world.list_indexed(NODE_OF, "m")) == []


def test_it_is_synced_once_every_kind_is_listed_to_the_end() -> None:
    store = make()
    store.apply(POD, Listed((pod("a"),), is_last=False))
    store.apply(QUEUE, Listed(()))
    assert store.unsynced() == ["pods"]
    store.apply(POD, Listed((pod("b"),), is_first=False))
    assert (store.unsynced(), names(store.listed(POD))) == ([], ["a", "b"])


def test_what_was_written_is_there_at_once_and_is_not_undone_by_older_news() -> None:
    told = Told()
    store = make(told)
    store.apply(POD, Listed((pod("a", 1),), resource_version="1"))
    store.record_written(POD, pod("a", 5, node="n"))
    store.apply(POD, Changed(pod("a", 3)))
    store.apply(POD, Changed(pod("a", 5, node="n")))
    assert names(store.list_indexed(NODE_OF, "n")) == ["a"]
    assert told == [(None, "1"), ("1", "5")]


def test_what_was_deleted_does_not_come_back_with_older_news() -> None:
    store = make()
    store.apply(POD, Listed((pod("a", 1),)))
    store.record_deleted(Ref(POD, "x", "a"), "uid-a")
    store.apply(POD, Changed(pod("a", 2)))
    assert names(store.listed(POD)) == []
    store.apply(POD, Deleted(pod("a", 3)))
    store.apply(POD, Changed(pod("a", 4, uid="new")))
    assert names(store.listed(POD)) == ["a"]
    store.record_deleted(Ref(POD, "x", "a"), "uid-a")
    store.apply(POD, Deleted(pod("a", 5)))
    assert names(store.listed(POD)) == ["a"]


def test_a_new_list_drops_what_is_gone_but_not_what_is_younger() -> None:
    store = make()
    store.apply(POD, Listed((pod("a", 1), pod("b", 2)), resource_version="2"))
    store.record_written(POD, pod("c", 9))
    store.apply(POD, Listed((pod("b", 2),), resource_version="8"))
    assert names(store.listed(POD)) == ["b", "c"]


def test_versions_that_are_no_numbers_are_taken_as_they_come() -> None:
    store = make()
    store.apply(POD, Changed(pod("a", "x", node="n")))
    store.apply(POD, Changed(pod("a", "b", node="m")))
    assert names(store.list_indexed(NODE_OF, "m")) == ["a"]


def test_what_nobody_looks_at_is_not_kept() -> None:
    store = make()
    obj = pod("a")
    obj["metadata"]["managedFields"] = [{"manager": "x"}]
    store.apply(POD, Changed(obj))
    assert "managedFields" not in store.get(POD, "x", "a")["metadata"]


# --- scopes --------------------------------------------------------------------------------------

OURS, NAMED = Scope(label="ours"), Scope("x", "named")


def narrow() -> Store:
    """Return a store that watches some objects by label, and one object by name."""
    store = Store((CONFIG_MAP,), (), FakeClock(), Told(), {CONFIG_MAP: (OURS, NAMED)})
    store.apply(CONFIG_MAP, Listed((labelled("a"), labelled("b"))), OURS)
    store.apply(CONFIG_MAP, Listed((pod("named"),)), NAMED)
    return store


def labelled(name: str, version: int = 1) -> dict[str, Any]:
    obj = pod(name, version)
    obj["metadata"]["labels"] = {"ours": ""}
    return obj


def test_each_scope_is_listed_by_itself() -> None:
    store = narrow()
    assert names(store.listed(CONFIG_MAP)) == ["a", "b", "named"]
    store.apply(CONFIG_MAP, Listed((labelled("a"),)), OURS)
    assert names(store.listed(CONFIG_MAP)) == ["a", "named"]
    store.apply(CONFIG_MAP, Listed(()), NAMED)
    assert names(store.listed(CONFIG_MAP)) == ["a"]


def test_it_is_synced_once_every_scope_is_listed() -> None:
    store = Store((CONFIG_MAP,), (), FakeClock(), Told(), {CONFIG_MAP: (OURS, NAMED)})
    store.apply(CONFIG_MAP, Listed(()), OURS)
    assert store.unsynced() == ["configmaps"]
    store.apply(CONFIG_MAP, Listed(()), NAMED)
    assert store.unsynced() == []


def test_what_two_scopes_hold_stays_until_it_is_gone() -> None:
    store = narrow()
    store.apply(CONFIG_MAP, Changed(labelled("named", 2)), NAMED)
    store.apply(CONFIG_MAP, Changed(labelled("named", 2)), OURS)
    store.apply(CONFIG_MAP, Changed(pod("named", 3)), NAMED)
    # The object has lost its label, and the watch reports its old state with the new version.
    store.apply(CONFIG_MAP, Deleted(labelled("named", 3)), OURS)
    assert store.get(CONFIG_MAP, "x", "named") == pod("named", 3)
    store.apply(CONFIG_MAP, Deleted(pod("named", 4)), NAMED)
    assert store.get(CONFIG_MAP, "x", "named") is None


def test_what_is_outside_of_every_scope_is_not_kept() -> None:
    store = narrow()
    store.record_written(CONFIG_MAP, pod("c", 5))
    store.record_written(CONFIG_MAP, labelled("d", 6))
    assert names(store.listed(CONFIG_MAP)) == ["a", "b", "d", "named"]


def test_strangers_are_remembered_for_a_while() -> None:
    clock = FakeClock()
    store = Store((CONFIG_MAP,), (), clock, Told(), {CONFIG_MAP: (OURS,)})
    store.record_unwatched(Ref(CONFIG_MAP, "x", "c"), pod("c"))
    store.record_unwatched(Ref(CONFIG_MAP, "x", "d"), labelled("d"))
    assert store.unfollowed_metadata(CONFIG_MAP, "x", "c") == pod("c")
    assert store.unfollowed_metadata(CONFIG_MAP, "x", "d") is None
    assert names(store.listed(CONFIG_MAP)) == []
    clock.seconds += 8
    assert store.unfollowed_metadata(CONFIG_MAP, "x", "c") is None


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["change", "write", "gone"]), st.booleans()),
    max_size=20,
)


@given(STEPS, st.integers(0, 5))
def test_however_late_news_come_the_end_is_the_same(
    steps: list[tuple[str, str, bool]], every: int
) -> None:
    """A watch reports the server's history late, but the store learns of own writes immediately."""
    store, there, version = make(), dict[str, dict[str, Any]](), 0
    store.apply(POD, Listed((), resource_version="0"))
    late: list[Any] = []
    for name, what, is_on_node in steps:
        version += 1
        if what == "gone":
            if name in there:
                uid = there.pop(name)["metadata"]["uid"]
                late.append(Deleted(pod(name, version, uid)))
                if is_on_node:
                    store.record_deleted(Ref(POD, "x", name), uid)
            continue
        uid = there[name]["metadata"]["uid"] if name in there else f"{name}{version}"
        obj = pod(name, version, uid, **({"node": "n"} if is_on_node else {}))
        there[name] = obj
        late.append(Changed(obj))
        if what == "write":
            store.record_written(POD, obj)
        if every and version % every == 0 and late:
            store.apply(POD, late.pop(0))
    for event in late:
        store.apply(POD, event)
    assert names(store.listed(POD)) == sorted(there)
    on_node = [name for name, obj in there.items() if obj["spec"]]
    assert names(store.list_indexed(NODE_OF, "n")) == sorted(on_node)
