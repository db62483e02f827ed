"""The instance catalogue with parameters and best known plans, and the list of shipped instances.

The catalogue is the file `instances/catalogue.yaml` with the schema `SCHEMA`; docs/instances.md
explains it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from optsched.api.crds import find_unknown_fields
from optsched.api.fields import Fields, boolean, count, listing, mapping, record, text
from optsched.cluster.decisions import LevelStatus, Sense, relative_gap
from optsched.formats.codec.snapshot_annotations import API_VERSION
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.files.yaml_text import line_of, read_document
from optsched.formats.plan import KIND as PLAN
from optsched.formats.plan import encode_level, parse_level, published_schema
from optsched.solver.preemption.sequential.model import ENDED, VICTIMS
from optsched.study.instances.gang_instances import CASES
from optsched.study.instances.instance_families import LICENCE, Recipe, RecipeError
from optsched.units.plaintext import write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from optsched.api.fields import Schema
    from optsched.cluster.decisions import LevelResult
    from optsched.units import FieldError


BEGIN: Final = "<!-- table -->"
END: Final = "<!-- end of table -->"


def with_table(page: str, entries: Iterable[Entry]) -> str:
    """Insert a table of instances into a page, between the markers `BEGIN` and `END`.

    Raises ValueError if the page lacks one of the markers.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks a marker of the table: {BEGIN} or {END}")
    lines = ["| instance | model | level | value | bound | gap |", "|---|---|---|---:|---:|---:|"]
    for entry in entries:
        named = f"{entry.title}{'' if entry.is_stored else ' *'}"
        for best in entry.best:
            for i, level in enumerate(best.levels):
                name, gap = f"{level.name} ({level.sense.value}, {level.unit})", gap_of(level)
                bound = "unknown" if level.bound is None else str(level.bound)
                far = "unknown" if gap is None else f"{gap:.2%}" if gap else "0"
                shown = (named, best.model) if i == 0 else ("", "")
                lines.append(f"| {' | '.join([*shown, name, str(level.value), bound, far])} |")
    table = "\n".join(lines)
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


KIND: Final = "InstanceCatalogue"
FILE: Final = "catalogue.yaml"
LARGEST_GAP: Final = 0.01

_TEXTS: Final = {"type": "string"}

_CERTIFICATE: Final = published_schema(PLAN)["properties"]["certificate"]
_LEVEL: Final[Schema] = _CERTIFICATE["properties"]["levels"]["items"]

SCHEMA: Final[Schema] = record(
    "Instances and their best known plans.",
    ("apiVersion", "kind", "instances"),
    apiVersion=text("Version of this format.", enum=[API_VERSION]),
    kind=text("Name of this format.", enum=[KIND]),
    instances=listing(
        "The instances, sorted by family and size.",
        record(
            "One instance.",
            ("family", "name", "seed", "parameters", "licence", "sha256", "bytes", "stored"),
            family=text("Name of the family, which is also the folder."),
            name=text("File name without the extension."),
            seed=count("Seed of the random generator."),
            parameters=mapping("Parameters of the family, keyed by name.", {}),
            licence=text("Licence of the file.", enum=[LICENCE]),
            sha256=text("SHA-256 digest of the file, in hexadecimal.", pattern="^[0-9a-f]{64}$"),
            bytes=count("Length of the file."),
            stored=boolean("Whether the file is stored; if not, it is generated when needed."),
            pending=mapping("Expected reason codes of waiting gangs, keyed by gang.", _TEXTS),
            best=listing(
                "The best known plan of each model.",
                record(
                    "The best known plan of one model.",
                    ("model", "plan", "engine", "found", "levels"),
                    model=text("Name of the model."),
                    plan=text("File of the plan, in the folder of the instance."),
                    engine=text("Engine that found the plan."),
                    found=mapping("How the plan was found: versions and limits.", _TEXTS),
                    levels=listing("Levels in order of importance.", _LEVEL),
                ),
            ),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Best:
    """The best known plan for an instance under a model."""

    model: str
    plan: str  # Path of the plan file, relative to the family's folder.
    engine: str  # Engine (solver) that found the plan.
    found: Mapping[str, str]  # Solver versions and limits with which the plan was found.
    levels: tuple[LevelResult, ...]  # Objective levels with their best known bounds.


@dataclass(frozen=True, slots=True)
class Entry:
    """A catalogue entry for one instance; `size` is the size of the instance file in bytes."""

    recipe: Recipe
    sha256: str
    size: int
    is_stored: bool
    pending: Mapping[str, str] = field(default_factory=dict)
    best: tuple[Best, ...] = ()

    @property
    def title(self) -> str:
        """The family and name of the instance, joined by a slash."""
        return f"{self.recipe.family}/{self.recipe.name}"


# --- objective levels ----------------------------------------------------------------------------


OVER_VICTIMS = frozenset({VICTIMS, ENDED})


def gap_of(level: LevelResult) -> float | None:
    """Return the relative gap between value and bound, or None if there is no bound."""
    return None if level.bound is None else relative_gap(level.value, level.bound)


def wrong_with_level(level: LevelResult) -> Iterator[str]:
    """Yield a message for each error in a level result, such as a gap above `LARGEST_GAP`."""
    value, bound = level.value, level.bound
    if bound is None:
        yield f"{level.name}: there is no bound"
        return
    if value > bound if level.sense is Sense.MAX else value < bound:
        yield f"{level.name}: {value} is beyond the bound {bound}"
    if (value == bound) is not (level.status is LevelStatus.OPTIMAL):
        yield f"{level.name}: {value} with bound {bound} is not {level.status}"
    # A bound on the number of victims holds for all plans, so it may be weak if several gangs
    # preempt.
    if level.name not in OVER_VICTIMS and (gap := relative_gap(value, bound)) > LARGEST_GAP:
        yield f"{level.name}: {value} with bound {bound} has a gap of {gap:.2%}; 1 % is allowed"


# --- writing the catalogue -----------------------------------------------------------------------


def catalogue_text(entries: Iterable[Entry]) -> str:
    """Format a catalogue file, in which each objective level is one line."""
    lines = [
        "# Instances with the best known plan of each; see docs/instances.md.",
        "# Written by `make instances` and `make instances-update`. Apache-2.0.",
        f"apiVersion: {API_VERSION}",
        f"kind: {KIND}",
        "instances:",
    ]
    for entry in entries:
        recipe = entry.recipe
        lines += [
            f"- family: {recipe.family}",
            f"  name: {write_json(recipe.name)}",
            f"  seed: {recipe.seed}",
            f"  parameters: {write_json(dict(recipe.parameters))}",
            f"  licence: {LICENCE}",
            f"  sha256: {write_json(entry.sha256)}",
            f"  bytes: {entry.size}",
            f"  stored: {write_json(entry.is_stored)}",
        ]
        if entry.pending:
            lines.append(f"  pending: {write_json(dict(entry.pending))}")
        if entry.best:
            lines.append("  best:")
        for best in entry.best:
            lines += [
                f"  - model: {best.model}",
                f"    plan: {best.plan}",
                f"    engine: {write_json(best.engine)}",
                f"    found: {write_json(dict(best.found))}",
                "    levels:",
                *(f"    - {write_json(encode_level(level))}" for level in best.levels),
            ]
    return "\n".join([*lines, ""])


# --- reading the catalogue -----------------------------------------------------------------------


def read_catalogue(path: Path) -> tuple[Entry, ...]:
    """Read the entries of a catalogue file.

    Raises InstanceError if the file cannot be read or is invalid. The message names the file, line
    and field of every error.
    """
    source, document = read_document(path, KIND)
    errors: list[FieldError] = []
    whole = Fields(document.value, SCHEMA, "", errors)
    entries = tuple(_read_entry(each) for each in whole.records("instances"))
    unknown = find_unknown_fields(document.value, SCHEMA)
    titles = [entry.title for entry in entries]
    mistakes = [
        *((e.path, f"{e.path}: {e.message}") for e in (*errors, *unknown)),
        *(
            (f"instances[{i}]", f"instances[{i}]: {title} is listed twice")
            for i, title in enumerate(titles)
            if title in titles[:i]
        ),
    ]
    if mistakes:
        lines = (f"{path}:{line_of(source, document, at)}: {message}" for at, message in mistakes)
        raise InstanceError("\n".join(lines))
    return entries


def _read_entry(fields: Fields) -> Entry:
    """Parse a catalogue entry, and add its errors to the error list of `fields`."""
    parameters: dict[str, Any] = fields.mapping("parameters")
    recipe = Recipe(fields.text("family"), fields.text("name"), fields.integer("seed"), parameters)
    fields.text("licence")
    try:
        recipe.build_family()
    except RecipeError as e:
        name, _, message = str(e).partition(": ")
        fields.reject(name, None, message)
    return Entry(
        recipe,
        sha256=fields.text("sha256"),
        size=fields.integer("bytes"),
        is_stored=fields.boolean("stored"),
        pending=fields.texts_by_name("pending"),
        best=tuple(
            Best(
                model=each.text("model"),
                plan=each.text("plan"),
                engine=each.text("engine"),
                found=each.texts_by_name("found"),
                levels=tuple(parse_level(level) for level in each.records("levels")),
            )
            for each in fields.records("best")
        ),
    )


PACKING: Final = "vector-packing"
"""Placeholder for the model name of vector bin packing instances, which have no model."""

_WEIGHTS, _VOLCANO, _FRAGMENTS = "max-throughput", "volcano-default", "min-fragmentation"
_CARDS = "gpus-shared/model.yaml"
_QUEUES, _TOPOLOGY = "capacity-hierarchical", "topology-first"

MOST_BYTES: Final = 60_000
"""Maximum size in bytes of stored instance files; larger ones are generated when needed."""


@dataclass(frozen=True)
class Shipped:
    """A shipped instance, and the models under which it is solved."""

    recipe: Recipe
    models: tuple[str, ...]


def _instances_of_family(
    family: str, models: tuple[str, ...], **sizes: dict[str, int | str]
) -> tuple[Shipped, ...]:
    named = ((name.replace("_", "-"), parameters) for name, parameters in sizes.items())
    return tuple(Shipped(Recipe(family, name, 1, given), models) for name, given in named)


SHIPPED: Final[tuple[Shipped, ...]] = (
    *_instances_of_family(
        "gangs-homogeneous",
        (_WEIGHTS, _VOLCANO),
        tiny={"nodes": 4},
        small={"nodes": 16},
        medium={"nodes": 48},
        large={"nodes": 125},
    ),
    *_instances_of_family(
        "gangs-fragmented",
        (_WEIGHTS, _VOLCANO, _FRAGMENTS),
        tiny={"nodes": 6},
        small={"nodes": 16},
    ),
    *_instances_of_family(
        "gangs-fragmented", (_WEIGHTS, _VOLCANO), medium={"nodes": 48}, large={"nodes": 125}
    ),
    *_instances_of_family(
        "queues-hierarchical",
        (_QUEUES,),
        tiny={"nodes": 4, "departments": 2, "teams": 2},
        small={"nodes": 12, "departments": 3, "teams": 2},
        medium={"nodes": 32, "departments": 3, "teams": 3},
        large={"nodes": 125, "departments": 4, "teams": 4},
    ),
    *_instances_of_family(
        "topology",
        (_TOPOLOGY,),
        tiny={"spines": 2, "racks": 2, "nodes": 2},
        small={"spines": 2, "racks": 2, "nodes": 4},
        medium={"spines": 2, "racks": 4, "nodes": 4},
        large={"spines": 4, "racks": 4, "nodes": 8},
    ),
    *_instances_of_family(
        "victims",
        (_VOLCANO,),
        preempt_tiny={"nodes": 3, "waiting": 2},
        preempt_small={"nodes": 8, "waiting": 6},
        preempt_medium={"nodes": 32, "waiting": 20},
        preempt_large={"nodes": 125, "waiting": 30},
    ),
    *_instances_of_family(
        "victims",
        (_QUEUES,),
        reclaim_tiny={"nodes": 4, "waiting": 3, "queues": 2},
        reclaim_small={"nodes": 9, "waiting": 6, "queues": 3},
        reclaim_medium={"nodes": 40, "waiting": 20, "queues": 3},
    ),
    *_instances_of_family(
        "heterogeneous",
        (_WEIGHTS, _VOLCANO),
        tiny={"gpu_nodes": 2, "cpu_nodes": 2, "gangs": 5},
        small={"gpu_nodes": 6, "cpu_nodes": 3, "gangs": 12},
        medium={"gpu_nodes": 24, "cpu_nodes": 12, "gangs": 60},
    ),
    *_instances_of_family(
        "gpus-shared",
        (_CARDS,),
        tiny={"nodes": 2, "cards": 2},
        small={"nodes": 6, "cards": 4},
        medium={"nodes": 16, "cards": 8},
    ),
    *_instances_of_family(
        "vector-packing",
        (PACKING,),
        tiny={"items": 20, "kinds": 6},
        small={"items": 60, "kinds": 12},
        medium={"items": 200, "kinds": 30, "dimensions": 3},
    ),
    *_instances_of_family(
        "vector-packing-cut",
        (PACKING,),
        tiny={"bins": 6, "pieces": 3},
        small={"bins": 20, "pieces": 3},
        medium={"bins": 20, "pieces": 3, "dimensions": 3},
    ),
    *(
        Shipped(Recipe("infeasible", case, 1, {"case": case, "nodes": 8}), (_TOPOLOGY,))
        for case in CASES
    ),
    *_instances_of_family("infeasible", (_TOPOLOGY,), pairs_medium={"case": "pairs", "nodes": 64}),
)
