"""Command: something to be done once to a job or a queue, read from `bus.volcano.sh/v1alpha1`.

Source of names: Volcano's bus/v1alpha1/commands.go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optsched.api.fields import Fields
from optsched.api.job_schemas import COMMAND_SCHEMA
from optsched.api.meta import OwnerReference, parse_meta

if TYPE_CHECKING:
    from optsched.api.meta import ObjectMeta
    from optsched.units import FieldError


@dataclass(frozen=True, slots=True)
class Command:
    """Something to be done once. action: such as AbortJob, ResumeJob, OpenQueue or CloseQueue.

    target: None where it names none. errors: fields that cannot be read.
    """

    meta: ObjectMeta
    action: str = ""
    target: OwnerReference | None = None
    reason: str = ""
    message: str = ""
    errors: tuple[FieldError, ...] = ()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return self.meta.key


def parse_command(obj: object) -> tuple[Command | None, tuple[FieldError, ...]]:
    """The command in a manifest or an answer of the API server, and all that is wrong with it.

    None only for an object without a name.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, COMMAND_SCHEMA, "", errors)
    target = whole.optional_record("target")
    command = Command(
        meta=meta,
        action=whole.text("action"),
        target=None if target is None else _target(target),
        reason=whole.text("reason"),
        message=whole.text("message"),
        errors=tuple(errors),
    )
    return command, command.errors


def _target(target: Fields) -> OwnerReference:
    # Nothing follows from who blocks whose deletion; it is read so that a wrong value is named.
    target.boolean("blockOwnerDeletion")
    return OwnerReference(
        api_version=target.text("apiVersion"),
        kind=target.text("kind"),
        name=target.text("name"),
        uid=target.text("uid"),
        controller=target.boolean("controller"),
    )
