"""NodeShard: nodes for one of several schedulers, read from `shard.volcano.sh/v1alpha1`.

Source of names: Volcano's shard/v1alpha1/types.go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optsched.api.fields import Fields
from optsched.api.meta import parse_meta
from optsched.api.topology_schemas import NODE_SHARD_SCHEMA

if TYPE_CHECKING:
    from optsched.api.meta import ObjectMeta
    from optsched.units import FieldError


@dataclass(frozen=True, slots=True)
class NodeShard:
    """The nodes of one scheduler, by name.

    wanted: what should be in the shard. in_use, to_remove, to_add: as its scheduler last wrote, at
    updated_ms in milliseconds since 1970. errors: fields that cannot be read; they are left out.
    """

    meta: ObjectMeta
    wanted: tuple[str, ...] = ()
    in_use: tuple[str, ...] = ()
    to_remove: tuple[str, ...] = ()
    to_add: tuple[str, ...] = ()
    updated_ms: int | None = None
    errors: tuple[FieldError, ...] = ()

    @property
    def name(self) -> str:
        """The shard's name."""
        return self.meta.name


def parse_nodeshard(obj: object) -> tuple[NodeShard | None, tuple[FieldError, ...]]:
    """The shard in a manifest or an answer of the API server, and all that is wrong with it.

    None only for an object without a name.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, NODE_SHARD_SCHEMA, "", errors)
    spec, status = whole.record("spec"), whole.record("status")
    found = NodeShard(
        meta=meta,
        wanted=spec.texts("nodesDesired"),
        in_use=status.texts("nodesInUse"),
        to_remove=status.texts("nodesToRemove"),
        to_add=status.texts("nodesToAdd"),
        updated_ms=status.time_ms("lastUpdateTime"),
        errors=tuple(errors),
    )
    return found, found.errors
