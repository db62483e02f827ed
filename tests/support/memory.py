"""An API server in memory for controllers, which applies their effects.

    world = MemoryWorld()
    world.put(POD, {"metadata": {"name": "a", "namespace": "x"}})
    world.apply(reconcile(world.get(...), world))

Objects get UIDs, versions and times. The world refuses a write that the server would refuse, and
records the write in `refused`. For example, the creation of an existing object is refused. Deletion
waits for finalizers and for the end of pods, and also deletes owned objects. Bound pods stay until
`ended(...)` removes them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optsched.api.json_fields import controller_of, is_owned_as, ref_of, uid_of
from optsched.api.kinds import POD, Kind, Ref
from optsched.controllers.effects import (
    Again,
    AskFabric,
    AskQuestion,
    Create,
    Delete,
    Effect,
    Emit,
    Patch,
    PatchStatus,
    Propagation,
    Then,
)
from optsched.units import format_time

if TYPE_CHECKING:
    from optsched.controllers.controller import Index
    from optsched.controllers.effects import Fabric, FabricAnswer, Question

FOREGROUND = "foregroundDeletion"


@dataclass(frozen=True)
class Refused:
    """An effect that the server would have refused, and the server's reason."""

    effect: Effect
    reason: str


class MemoryWorld:
    """A `World` in memory, with methods for the actions of other clients."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self.now_ms = now_ms
        self.events: list[Emit] = []
        self.agains: list[Again] = []
        self.refused: list[Refused] = []
        self.writes: list[Effect] = []
        """The effects that changed an object."""
        self.asked: list[Question] = []
        self.answers: set[Question] = set()
        """The questions that have an answer."""
        self.listeners: list[Callable[[str, Ref, Mapping[str, Any]], None]] = []
        """The functions to call after each change, with ADDED, MODIFIED or
        DELETED and the object.
        """
        self.asked_fabrics: list[Fabric] = []
        self.fabrics: dict[Fabric, FabricAnswer] = {}
        """The answers of fabrics."""
        self.strangers: dict[Ref, Mapping[str, Any]] = {}
        """Objects of unfollowed kinds, of which only metadata is read."""
        self._objects: dict[Ref, dict[str, Any]] = {}
        self._version = 0

    # --- World -----------------------------------------------------------------------------------

    def get(self, kind: Kind, namespace: str, name: str) -> Mapping[str, Any] | None:
        return self._objects.get(Ref(kind, namespace, name))

    def listed(self, kind: Kind, namespace: str | None = None) -> list[Mapping[str, Any]]:
        return [
            obj
            for ref, obj in self._objects.items()
            if ref.kind == kind and namespace in (None, ref.namespace)
        ]

    def owned_by(self, kind: Kind, owner: Kind, uid: str) -> list[Mapping[str, Any]]:
        return [
            obj
            for obj in self.listed(kind)
            if (found := controller_of(obj)) is not None
            and found.get("uid") == uid
            and is_owned_as(found, owner)
        ]

    def list_indexed(self, index: Index, value: str) -> list[Mapping[str, Any]]:
        return [obj for obj in self.listed(index.kind) if value in index.values(obj)]

    def objects(self) -> dict[Ref, dict[str, Any]]:
        """Return a copy of every object."""
        return copy.deepcopy(self._objects)

    @property
    def version(self) -> int:
        """The number of changes so far."""
        return self._version

    def unfollowed_metadata(
        self, kind: Kind, namespace: str, name: str
    ) -> Mapping[str, Any] | None:
        return self.strangers.get(Ref(kind, namespace, name))

    def fabric_answer(self, fabric: Fabric) -> FabricAnswer | None:
        return self.fabrics.get(fabric)

    def is_answered(self, question: Question) -> bool:
        return question in self.asked and question in self.answers

    # --- actions of other clients ----------------------------------------------------------------

    def put(self, kind: Kind, obj: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create or replace an object with its status, as another client."""
        made = copy.deepcopy(dict(obj))
        made.setdefault("apiVersion", kind.api_version)
        made.setdefault("kind", kind.kind)
        meta = made.setdefault("metadata", {})
        if kind.namespaced:
            meta.setdefault("namespace", "default")
        before = self._objects.get(ref_of(kind, made))
        known = {} if before is None else before["metadata"]
        meta.setdefault("uid", known.get("uid", f"uid-{self._version + 1}"))
        meta.setdefault("creationTimestamp", known.get("creationTimestamp", self._now()))
        return self._keep(ref_of(kind, made), made)

    def change(self, ref: Ref, edit: Callable[[dict[str, Any]], object]) -> Mapping[str, Any]:
        """Change an object, as another client."""
        obj = copy.deepcopy(self._objects[ref])
        edit(obj)
        return self._keep(ref, obj)

    def phase(self, name: str, phase: str, namespace: str = "default", **status: Any) -> None:
        """Set the status of a pod, as a kubelet."""
        ref = Ref(POD, namespace, name)
        self.change(ref, lambda pod: pod.update(status={"phase": phase, **status}))

    def remove(self, ref: Ref, propagation: Propagation = Propagation.BACKGROUND) -> None:
        """Delete an object, as another client."""
        self._delete(Delete(ref.kind, ref.namespace, ref.name, propagation=propagation))

    def ended(self, *names: str, namespace: str = "default") -> None:
        """Remove terminating pods like their kubelets, either all of them or some by name."""
        for ref, obj in list(self._objects.items()):
            is_asked = ref.kind == POD and "deletionTimestamp" in obj["metadata"]
            if is_asked and (not names or (ref.namespace == namespace and ref.name in names)):
                self._gone(ref)

    def passes(self, seconds: float) -> None:
        """Advance the clock."""
        self.now_ms += round(seconds * 1000)

    # --- effects ---------------------------------------------------------------------------------

    def apply(self, effects: Iterable[Effect]) -> bool:
        """Apply effects, and return whether the server accepted all of them."""
        outcomes = [self._apply(effect) for effect in effects]
        return all(outcomes)

    def _apply(self, effect: Effect) -> bool:
        match effect:
            case Then(steps):
                return all(self._apply(step) for step in steps)
            case Emit():
                self.events.append(effect)
                return True
            case Again():
                self.agains.append(effect)
                return True
            case AskQuestion() | AskFabric():
                self._ask(effect)
                return True
        reason = self._refusal(effect)
        if reason:
            self.refused.append(Refused(effect, reason))
            return False
        version = self._version
        self._write(effect)
        if self._version != version:
            self.writes.append(effect)
        return True

    def _ask(self, effect: AskQuestion | AskFabric) -> None:
        if isinstance(effect, AskQuestion):
            self.asked.append(effect.question)
        else:
            self.asked_fabrics.append(effect.fabric)

    def _write(self, effect: Create | Patch | Delete) -> None:
        match effect:
            case Create():
                self._create(effect)
            case PatchStatus():
                self._patch(effect, {"status": effect.body["status"]})
            case Patch():
                body = dict(effect.body)
                if effect.kind.has_status:
                    body.pop("status", None)
                self._patch(effect, body)
            case Delete():
                self._delete(effect)

    def _refusal(self, effect: Create | Patch | Delete) -> str:
        known = self._objects.get(effect.ref)
        if isinstance(effect, Create):
            return "AlreadyExists" if known is not None else ""
        if known is None:
            return "NotFound"
        if effect.uid and effect.uid != uid_of(known):
            return "Conflict"
        version = effect.resource_version if isinstance(effect, Patch) else ""
        return "Conflict" if version and version != known["metadata"]["resourceVersion"] else ""

    def _create(self, effect: Create) -> None:
        made = dict(effect.manifest)
        if effect.kind.has_status:
            made.pop("status", None)
        assert made.get("apiVersion") == effect.kind.api_version, made
        assert made.get("kind") == effect.kind.kind, made
        assert bool(effect.ref.namespace) == effect.kind.namespaced, made
        if effect.kind == POD:
            made["status"] = {"phase": "Pending"}
        self.put(effect.kind, made)

    def _patch(self, effect: Patch, body: Mapping[str, Any]) -> None:
        obj = copy.deepcopy(self._objects[effect.ref])
        merge(obj, body)
        if obj != self._objects[effect.ref]:
            self._keep(effect.ref, obj)
            self._finish(effect.ref)

    def _delete(self, effect: Delete) -> None:
        ref, obj = effect.ref, copy.deepcopy(self._objects[effect.ref])
        meta = obj["metadata"]
        if effect.propagation is Propagation.ORPHAN:
            self._orphan(uid_of(obj))
        if effect.propagation is Propagation.FOREGROUND and "deletionTimestamp" not in meta:
            meta["finalizers"] = [*meta.get("finalizers", ()), FOREGROUND]
        if not _is_held(effect, obj):
            self._gone(ref)
            return
        if "deletionTimestamp" in meta:
            return
        meta["deletionTimestamp"] = self._now()
        self._keep(ref, obj)
        if FOREGROUND in meta.get("finalizers", ()):
            self._collect(uid_of(obj))
            self._finish(ref)

    def _finish(self, ref: Ref) -> None:
        """Remove a deleted object that waits neither for finalizers nor for owned objects."""
        obj = self._objects.get(ref)
        if obj is None or "deletionTimestamp" not in obj["metadata"]:
            return
        finalizers = obj["metadata"].get("finalizers") or []
        is_empty = not self._dependents(uid_of(obj))
        left = [f for f in finalizers if f != FOREGROUND or not is_empty]
        if not left and (ref.kind != POD or FOREGROUND in finalizers):
            self._gone(ref)

    def _gone(self, ref: Ref) -> None:
        obj = self._objects.pop(ref)
        self._version += 1
        last = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        self._tell("DELETED", ref, last)
        self._collect(uid_of(obj))
        for waiting in [r for r in self._objects if r.namespace in (ref.namespace, "")]:
            finalizers = self._objects.get(waiting, {"metadata": {}})["metadata"].get("finalizers")
            if finalizers and FOREGROUND in finalizers:
                self._finish(waiting)

    def _dependents(self, uid: str) -> list[Ref]:
        return [ref for ref, obj in self._objects.items() if uid in _owners(obj)]

    def _collect(self, uid: str) -> None:
        """Delete objects without a remaining owner, like kube-controller-manager's garbage
        collector.
        """
        there = {uid_of(obj) for obj in self._objects.values() if not _is_leaving(obj)}
        for ref in self._dependents(uid):
            if ref in self._objects and not there.intersection(_owners(self._objects[ref])):
                self._delete(Delete(ref.kind, ref.namespace, ref.name))

    def _orphan(self, uid: str) -> None:
        for ref in self._dependents(uid):
            obj = copy.deepcopy(self._objects[ref])
            owners = obj["metadata"]["ownerReferences"]
            obj["metadata"]["ownerReferences"] = [o for o in owners if o.get("uid") != uid]
            self._keep(ref, obj)

    def _keep(self, ref: Ref, obj: dict[str, Any]) -> Mapping[str, Any]:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        word = "MODIFIED" if ref in self._objects else "ADDED"
        self._objects[ref] = obj
        self._tell(word, ref, obj)
        return obj

    def _tell(self, word: str, ref: Ref, obj: Mapping[str, Any]) -> None:
        for listener in self.listeners:
            listener(word, ref, obj)

    def _now(self) -> str:
        return format_time(self.now_ms)


def merge(target: dict[str, Any], patch: Mapping[str, Any]) -> None:
    """Apply a JSON merge patch (RFC 7386) in place."""
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, Mapping):
            known = target.get(name)
            inner = known if isinstance(known, dict) else {}
            merge(inner, value)
            target[name] = inner
        else:
            target[name] = copy.deepcopy(value)


def _owners(obj: Mapping[str, Any]) -> set[str]:
    return {o["uid"] for o in obj["metadata"].get("ownerReferences") or () if o.get("uid")}


def _is_leaving(obj: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def _is_held(effect: Delete, obj: Mapping[str, Any]) -> bool:
    """Return whether a finalizer or a running pod delays the deletion of an object."""
    if obj["metadata"].get("finalizers"):
        return True
    if effect.kind != POD or effect.grace_s == 0:
        return False
    is_bound = bool((obj.get("spec") or {}).get("nodeName"))
    return is_bound and (obj.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
