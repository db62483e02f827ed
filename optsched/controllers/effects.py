"""The writes that a controller requests, as values; the executor executes them.

The effects of one decision are independent of each other; `Then` contains effects that are executed
in order. Every effect may be repeated: creating an object that exists and deleting an object that
does not exist both count as success.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

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

    The object's name must be derived from its purpose, so that it is created only once.
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
    """Merge a body into an object (RFC 7386), if its UID and resource version match.

    `uid` and `resource_version` are preconditions on the object; empty for no precondition. With a
    resource version, the API server rejects the patch after a concurrent write, and the object is
    reconciled again.
    """

    body: Manifest
    uid: str = ""
    resource_version: str = ""


@dataclass(frozen=True, slots=True)
class PatchStatus(Patch):
    """Merge a body of the form `{"status": ...}` into an object's status.

    The patch goes to the status subresource if the kind has one, and otherwise to the object.

    `may_wait_s` is the time in seconds for which the patch may be deferred. It is positive for
    changes that affect no decision and are probably followed by more changes, such as pod counts.
    The object is reconciled again when the delay ends, or later if its status was written recently.
    """

    may_wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Delete(_Named):
    """Delete an object, if its UID matches.

    An empty `uid` matches any UID. `grace_s` is a pod's grace period in seconds, or None for the
    one in the pod's spec.
    """

    uid: str = ""
    propagation: Propagation = Propagation.BACKGROUND
    grace_s: int | None = None


@dataclass(frozen=True, slots=True)
class Emit(_Named):
    """An Event about an object; equal events about one object are reported as one Event.

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
    """Reconcile the object `key`, or by default the current object, again after a delay."""

    after_s: float
    key: Ref | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A probe that checks whether a server answers at an address.

    `path` is the HTTP path to request; any status below 400 is an answer. If the path is empty, the
    probe only checks that the port is open. `header` is the name and value of an HTTP header; both
    are empty for no header.
    """

    host: str
    port: int
    path: str = ""
    header: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class AskQuestion:
    """Send a probe; afterwards, `World.is_answered` returns whether the server answered."""

    question: Question


@dataclass(frozen=True, slots=True)
class Fabric:
    """An NVIDIA UFM server, which knows the topology of a network fabric.

    `secret` is the namespace and name of the Secret with `username`, `password` and optionally
    `ca.crt`. `verifies` is true if the server's TLS certificate is verified.
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
    """Effects that are executed in order; after a failure, the remaining ones are skipped."""

    steps: tuple[Create | Patch | PatchStatus | Delete | Emit, ...]


Effect: TypeAlias = (
    Create | Patch | PatchStatus | Delete | Emit | AskQuestion | AskFabric | Again | Then
)
Effects: TypeAlias = tuple[Effect, ...]
