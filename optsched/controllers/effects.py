"""The writes that a controller requests, as values. The executor carries them out.

The effects of one decision are independent of each other; `Then` puts steps in order. Every effect
may be repeated: the creation of an existing object and the deletion of a missing one count as done.
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
"""An object as parsed JSON. It is never changed in place."""


class Propagation(StrEnum):
    """What happens to the objects that a deleted object owns (metav1.DeletionPropagation)."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object. Its name must be derived from its purpose, so that it exists only once."""

    kind: Kind
    manifest: Manifest

    @property
    def ref(self) -> Ref:
        """The reference to the object."""
        meta = self.manifest["metadata"]
        return Ref(self.kind, meta.get("namespace", ""), meta["name"])


@dataclass(frozen=True, slots=True)
class _Named:
    """An effect on the object with this name."""

    kind: Kind
    namespace: str
    name: str

    @property
    def ref(self) -> Ref:
        """The reference to the object."""
        return Ref(self.kind, self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Patch(_Named):
    """Merge a body into an object (RFC 7386), if its UID and resource version match.

    uid, resource_version: preconditions on the object; empty for none. With a resource version, a
    concurrent write makes the API server refuse the patch. The object is then reconciled again.
    """

    body: Manifest
    uid: str = ""
    resource_version: str = ""


@dataclass(frozen=True, slots=True)
class PatchStatus(Patch):
    """Merge a body of the form `{"status": ...}` into an object's status.

    The patch goes to the status subresource if the kind has one, and otherwise to the object
    itself.

    may_wait_s: how long the patch may be deferred, in seconds. It is positive for changes that
    nothing depends on and that are likely to be followed by more, such as numbers of pods. The
    object is reconciled again at the end of this time, or later if it was written shortly before.
    """

    may_wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Delete(_Named):
    """Delete an object, if its UID matches.

    uid: empty for any object with the name.
    grace_s: the grace period of a pod in seconds, or None for the period in the pod's spec.
    """

    uid: str = ""
    propagation: Propagation = Propagation.BACKGROUND
    grace_s: int | None = None


@dataclass(frozen=True, slots=True)
class Emit(_Named):
    """An Event about an object. Equal texts about one object are one Event.

    reason: one word, which `kubectl get events` shows.
    message: one sentence.
    code: distinguishes Events with the same reason.
    """

    uid: str
    type: EventType
    reason: str
    message: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Again:
    """Reconcile again after some seconds. key: the object, or None for the one being reconciled."""

    after_s: float
    key: Ref | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A probe of whether a server answers at an address.

    path: the HTTP path to request, where any status below 400 counts as an answer. An empty path
    checks only that the port is open.
    header: name and value of an HTTP header; empty for none.
    """

    host: str
    port: int
    path: str = ""
    header: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class AskQuestion:
    """Send a probe. `World.is_answered` then returns whether the server answered."""

    question: Question


@dataclass(frozen=True, slots=True)
class Fabric:
    """An NVIDIA UFM server, which knows the topology of a network fabric.

    secret: namespace and name of the Secret with `username`, `password` and optionally `ca.crt`.
    verifies: whether the TLS certificate of the server is verified.
    """

    url: str
    secret: tuple[str, str]
    verifies: bool = True


@dataclass(frozen=True, slots=True)
class FabricAnswer:
    """The reply of a fabric: links of hosts to leaf switches, or the problem."""

    at_ms: int
    links: tuple[tuple[str, str], ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class AskFabric:
    """Query a fabric for its topology. `World.fabric_answer` then returns the reply."""

    fabric: Fabric


@dataclass(frozen=True, slots=True)
class Then:
    """Effects that are carried out in order. The first failure skips the rest."""

    steps: tuple[Create | Patch | PatchStatus | Delete | Emit, ...]


Effect: TypeAlias = (
    Create | Patch | PatchStatus | Delete | Emit | AskQuestion | AskFabric | Again | Then
)
Effects: TypeAlias = tuple[Effect, ...]
