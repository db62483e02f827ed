"""The instance catalogue, which lists instances with their parameters and best known plans.

The catalogue is the file `instances/catalogue.yaml`; `SCHEMA` is its schema, and docs/instances.md
explains its fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from optsched.api.crds import find_unknown_fields
from optsched.api.fields import Fields, boolean, listing, mapping, non_negative, record, text
from optsched.formats.codec.annotations import API_VERSION
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.files.yaml_text import line_of, read_document
from optsched.formats.plan import KIND as PLAN
from optsched.formats.plan import parse_level, published_schema
from optsched.study.instances.instance_families import LICENCE, Recipe, RecipeError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from optsched.api.fields import Schema
    from optsched.cluster.decisions import LevelResult
    from optsched.units import FieldError


KIND: Final = "InstanceCatalogue"
FILE: Final = "catalogue.yaml"

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
            seed=non_negative("Seed of the random generator."),
            parameters=mapping("Parameters of the family, keyed by name.", {}),
            licence=text("Licence of the file.", enum=[LICENCE]),
            sha256=text("SHA-256 digest of the file, in hexadecimal.", pattern="^[0-9a-f]{64}$"),
            bytes=non_negative("Length of the file."),
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
    found: Mapping[str, str]  # Solver versions, and solver limits with which the plan was found.
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
    """Parse a catalogue entry, and append its errors to the error list of `fields`."""
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
