"""The writes of a controller, as values; the executor decides when.

Effects of one answer are independent of each other unless `Then` puts them in order. All of them
may be repeated: what exists already, or is deleted by now, counts as done.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from optsched.api.kinds import Ref

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.kinds import Kind
    from optsched.api.meta import EventType

Manifest: TypeAlias = "Mapping[str, Any]"
"""An object as JSON has it; never changed in place."""


class Propagation(StrEnum):
    """The fate of the objects that a deleted one owns (metav1.DeletionPropagation)."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object; its name has to follow from its purpose, so that it is created once."""

    kind: Kind
    manifest: Manifest

    @property
    def ref(self) -> Ref:
        """The object."""
        meta = self.manifest["metadata"]
        return Ref(self.kind, meta.get("namespace", ""), meta["name"])


@dataclass(frozen=True, slots=True)
class _Named:
    """An effect on the object of a name."""

    kind: Kind
    namespace: str
    name: str

    @property
    def ref(self) -> Ref:
        """The object."""
        return Ref(self.kind, self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Patch(_Named):
    """Merge into an object (RFC 7386), unless it is another one or has changed by now.

    uid, resource_version: a condition on the object; empty for any object of the name. With a
    resource version the patch is refused if anybody has written in between, and decided on again.
    """

    body: Manifest
    uid: str = ""
    resource_version: str = ""


@dataclass(frozen=True, slots=True)
class PatchStatus(Patch):
    """Merge into an object's status; body: `{"status": ...}`.

    It goes to the subresource where the kind has one, else to the object itself.

    may_wait_s: how long the patch may wait, in seconds. Nothing depends on this change, such as
    numbers of pods, and more changes are likely to follow: the patch is deferred by that long,
    longer if the object has been written shortly before, and decided again.
    """

    may_wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Delete(_Named):
    """Delete an object, if it is that very one.

    uid: empty for any object of the name.
    grace_s: seconds that a pod has to end; None for the pod's own setting.
    """

    uid: str = ""
    propagation: Propagation = Propagation.BACKGROUND
    grace_s: int | None = None


@dataclass(frozen=True, slots=True)
class Emit(_Named):
    """An Event on an object; the same text on the same object is one event.

    reason: a word for `kubectl get events`.
    message: one sentence.
    code: distinguishes events of the same reason.
    """

    uid: str
    type: EventType
    reason: str
    message: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Again:
    """Reconcile again after so many seconds; key: of which object, None for the same one."""

    after_s: float
    key: Ref | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """Whether something answers at an address.

    path: asked for over HTTP, where any answer below 400 will do; empty where an open port is
    enough.
    header: name and value; empty without one.
    """

    host: str
    port: int
    path: str = ""
    header: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class AskQuestion:
    """A question; `World.is_answered` then says whether there was an answer."""

    question: Question


@dataclass(frozen=True, slots=True)
class Fabric:
    """An NVIDIA UFM that knows a network.

    secret: namespace and name of the Secret with `username` and `password`, and perhaps `ca.crt`.
    verifies: whether its certificate has to be trusted.
    """

    url: str
    secret: tuple[str, str]
    verifies: bool = True


@dataclass(frozen=True, slots=True)
class FabricAnswer:
    """The reply of a fabric: hosts and the switches of their ports, or the error."""

    at_ms: int
    links: tuple[tuple[str, str], ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class AskFabric:
    """Query a fabric for its topology; `World.heard` then holds the reply."""

    fabric: Fabric


@dataclass(frozen=True, slots=True)
class Then:
    """One effect after the other; after a failure none of the rest."""

    steps: tuple[Create | Patch | PatchStatus | Delete | Emit, ...]


Effect: TypeAlias = (
    Create | Patch | PatchStatus | Delete | Emit | AskQuestion | AskFabric | Again | Then
)
Effects: TypeAlias = tuple[Effect, ...]
