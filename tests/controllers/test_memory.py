"""The in-memory API server of controller tests behaves like a real one in the relevant ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.api.json_fields import owner_reference, uid_of, version_of
from optsched.api.kinds import POD, QUEUE, Ref
from optsched.controllers.effects import (
    Again,
    Create,
    Delete,
    Patch,
    PatchStatus,
    Propagation,
    Then,
)
from tests.support.memory import MemoryWorld

if TYPE_CHECKING:
    from optsched.controllers.controller import World


def pod(name: str, **spec: object) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def test_it_is_a_world() -> None:
    world: World = MemoryWorld()
    assert world.get(POD, "default", "a") is None
    assert list(world.listed(POD)) == []


def test_an_object_is_created_once() -> None:
    world = MemoryWorld()
    assert world.apply((Create(POD, pod("a")),))
    assert not world.apply((Create(POD, pod("a")),))
    assert [refused.reason for refused in world.refused] == ["AlreadyExists"]
    assert len(world.listed(POD)) == 1


def test_a_patch_is_refused_once_the_object_has_changed() -> None:
    world = MemoryWorld()
    before = world.put(QUEUE, {"metadata": {"name": "q"}, "spec": {"weight": 1}})
    fresh = Patch(QUEUE, "", "q", {"spec": {"weight": 2}}, resource_version=version_of(before))
    assert world.apply((fresh,))
    assert not world.apply((fresh,))
    assert not world.apply((Patch(QUEUE, "", "q", {}, uid="another"),))
    assert [refused.reason for refused in world.refused] == ["Conflict", "Conflict"]


def test_status_and_spec_are_written_apart() -> None:
    world = MemoryWorld()
    world.put(QUEUE, {"metadata": {"name": "q"}, "spec": {"weight": 1}})
    body = {"spec": {"weight": 2}, "status": {"state": "Closed"}}
    world.apply((PatchStatus(QUEUE, "", "q", body),))
    assert world.get(QUEUE, "", "q")["spec"] == {"weight": 1}
    assert world.get(QUEUE, "", "q")["status"] == {"state": "Closed"}
    world.apply((Patch(QUEUE, "", "q", {**body, "status": {"state": "Open"}}),))
    assert world.get(QUEUE, "", "q")["spec"] == {"weight": 2}
    assert world.get(QUEUE, "", "q")["status"] == {"state": "Closed"}


def test_a_patch_that_changes_nothing_is_no_write() -> None:
    world = MemoryWorld()
    world.put(QUEUE, {"metadata": {"name": "q"}, "spec": {"weight": 1}})
    world.apply((Patch(QUEUE, "", "q", {"spec": {"weight": 1, "parent": None}}),))
    assert world.writes == []


def test_a_bound_pod_ends_before_it_goes_and_takes_nothing_along_by_mistake() -> None:
    world = MemoryWorld()
    for name in ("a", "b"):
        world.put(POD, pod(name, nodeName="n"))
    world.put(POD, pod("waiting"))
    world.apply(Delete(POD, "default", name) for name in ("a", "b", "waiting"))
    assert [p["metadata"]["name"] for p in world.listed(POD)] == ["a", "b"]
    world.ended("a")
    assert [p["metadata"]["name"] for p in world.listed(POD)] == ["b"]
    world.apply((Delete(POD, "default", "b", grace_s=0),))
    assert world.listed(POD) == []


def test_what_an_object_owns_goes_with_it() -> None:
    for propagation, left in (
        (Propagation.BACKGROUND, []),
        (Propagation.FOREGROUND, []),
        (Propagation.ORPHAN, ["p"]),
    ):
        world = MemoryWorld()
        owner = world.put(QUEUE, {"metadata": {"name": "q"}})
        owned = pod("p")
        owned["metadata"]["ownerReferences"] = [owner_reference(QUEUE, owner)]
        world.put(POD, owned)
        assert [p["metadata"]["name"] for p in world.owned_by(POD, QUEUE, uid_of(owner))] == ["p"]
        world.remove(Ref(QUEUE, "", "q"), propagation)
        assert world.get(QUEUE, "", "q") is None
        assert [p["metadata"]["name"] for p in world.listed(POD)] == left, propagation


def test_in_the_foreground_the_owner_goes_last() -> None:
    world = MemoryWorld()
    owner = world.put(QUEUE, {"metadata": {"name": "q"}})
    owned = pod("p", nodeName="n")
    owned["metadata"]["ownerReferences"] = [owner_reference(QUEUE, owner)]
    world.put(POD, owned)
    world.remove(Ref(QUEUE, "", "q"), Propagation.FOREGROUND)
    assert world.get(QUEUE, "", "q") is not None
    world.ended()
    assert world.get(QUEUE, "", "q") is None


def test_steps_end_with_the_first_that_fails() -> None:
    world = MemoryWorld()
    steps = Then((Delete(POD, "default", "none"), Create(POD, pod("a"))))
    assert not world.apply((steps, Again(1.0)))
    assert world.listed(POD) == []
    assert world.agains == [Again(1.0)]
