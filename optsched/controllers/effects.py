"""Effects: the API writes and other operations that a controller returns for execution.

The effects that one reconciliation returns are independent of each other, except those in a `Then`,
which are executed in order. Every effect may be repeated: it is no error if an object to create
already exists or an object to delete does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from optsched.api.json_fields import name_of, namespace_of, uid_of, version_of
from optsched.api.kinds import Ref

if TYPE_CHECKING:
    from optsched.api.json_fields import Manifest
    from optsched.api.kinds import Kind
    from optsched.api.meta import EventType


class Propagation(StrEnum):
    """What happens to objects that a deleted object owns (metav1.DeletionPropagation)."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object.

    The object's name must be deterministic, so that a repeated reconciliation creates no second
    object.
    """

    kind: Kind
    manifest: Manifest

    @property
    def ref(self) -> Ref:
        """The reference to the object."""
        meta = self.manifest["metadata"]
        return Ref(self.kind, meta.get("namespace", ""), meta["name"])


@dataclass(frozen=True, slots=True)
class _Named:
    """An effect on the object with the given kind, namespace and name."""

    kind: Kind
    namespace: str
    name: str

    @property
    def ref(self) -> Ref:
        """The reference to the object."""
        return Ref(self.kind, self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Patch(_Named):
    """Apply `body` as a JSON merge patch (RFC 7386) to an object.

    `uid` and `resource_version` are preconditions: unless they are empty, the object must have this
    UID and resource version. If another client has changed the object since it was read, the API
    server rejects a patch with a resource version. The object is then reconciled again.
    """

    body: Manifest
    uid: str = ""
    resource_version: str = ""


@dataclass(frozen=True, slots=True)
class PatchStatus(Patch):
    """Apply a JSON merge patch of the form `{"status": ...}` to an object's status.

    The patch is sent to the status subresource if the kind has a status subresource, and otherwise
    to the object.

    `may_wait_s` is the number of seconds for which the patch may be deferred. `may_wait_s` is
    positive for changes, such as new pod counts, that affect no decision and are often followed by
    more changes. If the patch is deferred, the object is reconciled again after `may_wait_s`, or
    later if its status was written recently.
    """

    may_wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Delete(_Named):
    """Delete an object if its UID is `uid`; an empty `uid` matches any object.

    `grace_s` is a pod's grace period in seconds; None stands for the grace period in its spec.
    """

    uid: str = ""
    propagation: Propagation = Propagation.BACKGROUND
    grace_s: int | None = None


@dataclass(frozen=True, slots=True)
class Emit(_Named):
    """Report an Event about an object; repetitions increase the count of the existing Event.

    Attributes
    ----------
    reason
        The Event's reason, a single word that `kubectl get events` shows.
    message
        The Event's message, a single sentence.
    code
        Distinguishes Events with the same reason.
    """

    uid: str
    type: EventType
    reason: str
    message: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Again:
    """Reconcile the object `key` after `after_s` seconds.

    If `key` is None, the current object is reconciled again.
    """

    after_s: float
    key: Ref | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A probe that checks whether a server answers at an address.

    `path` is the HTTP path to request; the server has answered if the status is below 400. If the
    path is empty, the probe only checks that the port is open. `header` is the name and value of an
    HTTP header; both are empty if no header is sent.
    """

    host: str
    port: int
    path: str = ""
    header: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class AskQuestion:
    """Send a probe; `World.is_answered` then returns whether the server has answered."""

    question: Question


@dataclass(frozen=True, slots=True)
class Fabric:
    """An NVIDIA UFM server, which knows the topology of a network fabric.

    `secret` is the (namespace, name) of the Secret with the keys `username`, `password` and,
    optionally, `ca.crt`. `verifies` is true if the server's TLS certificate must be verified.
    """

    url: str
    secret: tuple[str, str]
    verifies: bool = True


@dataclass(frozen=True, slots=True)
class FabricAnswer:
    """The reply of a fabric server: the links from hosts to leaf switches, or an error."""

    at_ms: int
    links: tuple[tuple[str, str], ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class AskFabric:
    """Query a fabric server for its topology; `World.fabric_answer` then returns the reply."""

    fabric: Fabric


@dataclass(frozen=True, slots=True)
class Then:
    """Effects that are executed in order; if one fails, the remaining effects are skipped."""

    steps: tuple[Create | Patch | PatchStatus | Delete | Emit, ...]


Effect: TypeAlias = (
    Create | Patch | PatchStatus | Delete | Emit | AskQuestion | AskFabric | Again | Then
)
Effects: TypeAlias = tuple[Effect, ...]


def delete_object(
    kind: Kind, obj: Manifest, propagation: Propagation = Propagation.BACKGROUND
) -> Delete:
    """Return the effect that deletes an object, but no later object with the same name."""
    return Delete(kind, namespace_of(obj), name_of(obj), uid_of(obj), propagation)


def patch_object(kind: Kind, obj: Manifest, body: Manifest) -> Patch:
    """Return the effect that applies a merge patch to an object."""
    return Patch(kind, namespace_of(obj), name_of(obj), body, uid_of(obj))


def patch_status(
    kind: Kind, obj: Manifest, changes: Manifest, may_wait_s: float = 0.0
) -> PatchStatus:
    """Return the effect that changes fields of an object's status.

    If another client has changed the object since it was read, the API server rejects the patch,
    because the decision may be outdated.
    """
    return PatchStatus(
        kind,
        namespace_of(obj),
        name_of(obj),
        {"status": changes},
        uid_of(obj),
        version_of(obj),
        may_wait_s,
    )


def event_about(
    kind: Kind, obj: Manifest, type_: EventType, reason: str, message: str, code: str = ""
) -> Emit:
    """Return the effect that reports an Event about an object."""
    return Emit(kind, namespace_of(obj), name_of(obj), uid_of(obj), type_, reason, message, code)
