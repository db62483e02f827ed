"""How GPUs and NPUs may be cut: tables in the ConfigMap that Volcano's device plugins read.

Volcano: `pkg/scheduler/api/devices/config` (`knownMigGeometries`, `vnpus`), `…/nvidia/vgpu/mig.go`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from optsched.api.fields import Fields
from optsched.api.schema import count, integer, listing, record, text, texts
from optsched.cluster.gpu_shares import Geometry, Instance
from optsched.formats.codec.ascend_npus import parse_chips
from optsched.formats.files.yaml_text import Document, read_yaml
from optsched.units import FieldError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.cluster.gpu_shares import Chip, SharedGpu

GeometryTable: TypeAlias = "tuple[tuple[str, tuple[Geometry, ...]], ...]"
"""(part of the name of a model, geometries), the first that fits counts."""


class DeviceTable(NamedTuple):
    """How GPUs may be cut by MIG, and NPUs by templates beyond what is known of them anyway."""

    geometries: GeometryTable = ()
    chips: tuple[Chip, ...] = ()


NO_TABLE: Final = DeviceTable()

CONFIG_FILE: Final = "device-config.yaml"
"""The entry of the ConfigMap."""
GEOMETRIES: Final = "optsched.io/mig-geometries"
"""Our own mark: the geometries of the GPUs of a node that has been dumped."""

_INSTANCE: Final = record(
    "",
    ("name", "memory", "count"),
    name=text(""),
    memory=count(""),
    count=integer("", minimum=1, maximum=64),
)
_GEOMETRY: Final = record("", ("group",), group=text(""), geometries=listing("", _INSTANCE))
_MODELS: Final = record("", ("models",), models=texts(""), allowedGeometries=listing("", _GEOMETRY))
_CONFIG: Final = record("", nvidia=record("", knownMigGeometries=listing("", _MODELS)), vnpus={})
_CONFIG_MAP: Final = record("", data=record("", **{CONFIG_FILE: text("")}))


def parse_device_table(obj: object) -> tuple[DeviceTable, tuple[FieldError, ...]]:
    """The tables in a ConfigMap, and every field that has no reading."""
    errors: list[FieldError] = []
    source = Fields(obj, _CONFIG_MAP, "", errors).record("data").text(CONFIG_FILE)
    path = f"data[{CONFIG_FILE}]"
    found: list[tuple[str, tuple[Geometry, ...]]] = []
    chips: list[Chip] = []
    for part in read_yaml(source):
        if not isinstance(part, Document):
            errors.append(FieldError(path, None, f"is not YAML: {part}"))
            continue
        config = Fields(part.value, _CONFIG, path, errors)
        chips += parse_chips(config.raw("vnpus"), f"{path}.vnpus", errors)
        for entry in config.record("nvidia").records("knownMigGeometries"):
            before = len(errors)
            cuts = tuple(_geometry(each) for each in entry.records("allowedGeometries"))
            if len(errors) == before:
                found += [(model, cuts) for model in entry.texts("models") if model]
    return DeviceTable(tuple(found), tuple(chips)), tuple(errors)


def _geometry(fields: Fields) -> Geometry:
    instances = (
        Instance(each.text("name"), each.integer("memory"), each.integer("count"))
        for each in fields.records("geometries")
    )
    return Geometry(fields.text("group"), tuple(instances))


def geometries_of(model: str, table: GeometryTable) -> tuple[Geometry, ...]:
    """How GPUs of a model may be cut; none where the table does not know it."""
    return next((cuts for name, cuts in table if name in model), ())


# --- on dumped nodes -----------------------------------------------------------------------------


def geometry_annotations(shared_gpus: Iterable[SharedGpu]) -> dict[str, str]:
    """The annotation of a node by which its GPUs keep their geometries."""
    known = {card.model: card.geometries for card in shared_gpus if card.geometries}
    if not known:
        return {}
    longest_first = sorted(known, key=lambda model: (-len(model), model))
    plain = [[m, [[g.name, g.instances] for g in known[m]]] for m in longest_first]
    return {GEOMETRIES: json.dumps(plain)}


def read_geometry_annotation(annotations: Mapping[str, str]) -> GeometryTable | None:
    """The geometries that a dumped node has kept; None where it has not, or has lost them."""
    source = annotations.get(GEOMETRIES)
    if source is None:
        return None
    try:
        return tuple(
            (model, tuple(Geometry(n, tuple(Instance(*i) for i in cut)) for n, cut in cuts))
            for model, cuts in json.loads(source)
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
