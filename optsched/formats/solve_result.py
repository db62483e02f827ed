"""Reader and writer of `optsched solve` results (kind SolveResult, described in docs/solve.md).

A result contains a plan, the progress of the search, and all data that is needed to reproduce the
solve. The reader validates against the schema in `deploy/schemas/solveresult.v1alpha1.json`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from optsched.api.fields import Fields
from optsched.cluster.decisions import Incumbent, Progress, SolveStatus, relative_gap
from optsched.formats.codec.annotations import API_VERSION
from optsched.formats.plan import (
    PlanDocument,
    encode_level,
    encode_plan,
    format_document,
    parse_level,
    parse_plan,
    published_schema,
)
from optsched.units import FieldError
from optsched.units.input_errors import why_unreadable
from optsched.units.plaintext import write_json

if TYPE_CHECKING:
    from collections.abc import Mapping

KIND: Final = "SolveResult"
LIST: Final = "SolveResultList"

_NOT_A_NUMBER: Final = "is not a number: write 0 or more"
_CONTRADICTS: Final = "contradicts {}, which implies {}"


def checksum(source: str | bytes) -> str:
    """Return the hexadecimal SHA-256 of bytes, or of a string encoded in UTF-8."""
    return sha256(source.encode() if isinstance(source, str) else source).hexdigest()


@dataclass(frozen=True, slots=True)
class FileSum:
    """A file name and the SHA-256 of the file."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class InstanceIdentity:
    """The identity of the solved instance: its files and their checksums.

    Attributes
    ----------
    path
        The path of the instance as the user gave it.
    files
        The files of the instance; their names are relative to `path`.

    """

    path: str
    files: tuple[FileSum, ...] = ()

    @property
    def sha256(self) -> str:
        """SHA-256 of the output of `sha256sum` for all files: lines `SUM  NAME`, sorted by name."""
        lines = (f"{f.sha256}  {f.path}\n" for f in sorted(self.files, key=lambda f: f.path))
        return checksum("".join(lines))


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """The identity of the model that was solved: its definition and its plugin files.

    Attributes
    ----------
    name, source
        Name of the model, and its origin: a file, or `model NAME` for a built-in model.
    text
        Full model definition, with asterisks for values whose keys suggest a password.
    plugins
        Files of custom plugins that the model may use.

    """

    name: str
    source: str
    text: str
    plugins: tuple[FileSum, ...] = ()

    @property
    def sha256(self) -> str:
        """SHA-256 of the model definition followed by one line `SUM  NAME` per plugin file."""
        lines = (f"{f.sha256}  {f.path}\n" for f in sorted(self.plugins, key=lambda f: f.path))
        return checksum("".join([self.text, *lines]))


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a solve.

    Attributes
    ----------
    solver
        The solver: `cpsat`, or `none` for the greedy pipeline alone.
    time_limit_s
        Wall-clock limit of one search in seconds, or None for a deterministic solve.
    deterministic_s
        Work limit per objective level, in CP-SAT's deterministic seconds.
    gap
        Relative gap at which the search of a level stops, or None to solve to optimality.
    seed, num_workers
        Random seed, and number of CP-SAT threads.
    schedulers
        Names of the schedulers whose pods were scheduled.

    """

    solver: str
    time_limit_s: float | None
    deterministic_s: float
    gap: float | None = None
    seed: int = 0
    num_workers: int = 2
    schedulers: tuple[str, ...] = ()

    @property
    def is_deterministic(self) -> bool:
        """Whether the solve is deterministic, that is, not limited by wall-clock time."""
        return self.time_limit_s is None


@dataclass(frozen=True, slots=True)
class SolveResult:
    """The outcome of a solve, its progress, and all data to reproduce it.

    Attributes
    ----------
    ended
        Why the solve ended; unless it is COMPLETE, the result is partial.
    versions
        Versions of optsched, python, ortools, numpy and scipy, keyed by name.
    command
        Command line that repeats the solve, without options that affect only the output.
    instance, model, parameters
        The instance, the model and the solver parameters.
    plan
        The verified plan, or None if the solve was killed before it had a plan.
    progress
        Progress reports in time order; the first report of each level describes the greedy plan.
    incumbents
        Best solution of each search, not verified; `--resume` continues from these solutions.

    """

    ended: SolveStatus
    versions: Mapping[str, str]
    command: tuple[str, ...]
    instance: InstanceIdentity
    model: ModelIdentity
    parameters: Parameters
    plan: PlanDocument | None
    progress: tuple[Progress, ...] = ()
    incumbents: tuple[Incumbent, ...] = field(default=())

    @property
    def is_partial(self) -> bool:
        """Whether a longer solve might have improved the solution or the bound."""
        return self.ended is not SolveStatus.COMPLETE

    @property
    def plan_sha256(self) -> str | None:
        """SHA-256 of the plan file that `--out` writes, or None if there is no plan."""
        return None if self.plan is None else checksum(format_document(self.plan))


# --- writing --------------------------------------------------------------------------------------


def write_result(result: SolveResult) -> str:
    """Format a result file; keys are sorted, so equal results yield equal text."""
    return _text(encode_result(result))


def write_results(results: tuple[SolveResult, ...]) -> str:
    """Format several results as one file of kind SolveResultList."""
    items = [encode_result(each) for each in results]
    return _text({"apiVersion": API_VERSION, "kind": LIST, "items": items})


def _text(obj: object) -> str:
    return f"{write_json(obj, indent=2, sort_keys=True)}\n"


def encode_result(result: SolveResult) -> dict[str, Any]:
    """Convert a result to the JSON object in its file."""
    levels: list[dict[str, Any]] = []
    for level in () if result.plan is None else result.plan.certificate.levels:
        relative = None if level.bound is None else relative_gap(level.value, level.bound)
        levels.append({**encode_level(level), "gap": level.gap, "relativeGap": relative})
    parameters = result.parameters
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "ended": result.ended.value,
        "partial": result.is_partial,
        "versions": dict(result.versions),
        "command": list(result.command),
        "instance": {
            "path": result.instance.path,
            "sha256": result.instance.sha256,
            "files": _encode_files(result.instance.files),
        },
        "model": {
            "name": result.model.name,
            "source": result.model.source,
            "text": result.model.text,
            "sha256": result.model.sha256,
            "plugins": _encode_files(result.model.plugins),
        },
        "parameters": {
            "solver": parameters.solver,
            "timeLimitSeconds": parameters.time_limit_s,
            "deterministic": parameters.is_deterministic,
            "deterministicSeconds": parameters.deterministic_s,
            "gap": parameters.gap,
            "seed": parameters.seed,
            "workers": parameters.num_workers,
            "schedulers": list(parameters.schedulers),
        },
        "levels": levels,
        "progress": [
            {
                "level": each.level,
                "turn": each.turn,
                "seconds": each.at_s,
                "incumbent": each.incumbent,
                "bound": each.bound,
            }
            for each in result.progress
        ],
        "incumbents": [
            {
                "turn": each.turn,
                "binds": dict(each.binds),
                "levels": [encode_level(level) for level in each.levels],
            }
            for each in result.incumbents
        ],
        "plan": None if result.plan is None else encode_plan(result.plan),
        "planSha256": result.plan_sha256,
    }


def _encode_files(files: tuple[FileSum, ...]) -> list[dict[str, str]]:
    return [{"path": f.path, "sha256": f.sha256} for f in files]


# --- reading --------------------------------------------------------------------------------------


def read_result(source: str) -> tuple[SolveResult | None, tuple[FieldError, ...]]:
    """Parse the text of a result file; return the result, or None if invalid, and all errors."""
    try:
        obj = json.loads(source)
    except (ValueError, RecursionError) as e:
        return None, (FieldError("result", source, f"is not JSON: {why_unreadable(e)}"),)
    return parse_result(obj)


def parse_result(obj: object) -> tuple[SolveResult | None, tuple[FieldError, ...]]:
    """Parse the JSON object of a result; return it, or None if invalid, and all errors."""
    errors: list[FieldError] = []
    whole = Fields(obj, published_schema(KIND), "", errors)
    for name in ("apiVersion", "kind"):
        whole.text(name)
    result = SolveResult(
        ended=SolveStatus(whole.text("ended") or SolveStatus.RUNNING),
        versions=whole.texts_by_name("versions"),
        command=whole.texts("command"),
        instance=_instance(whole.record("instance")),
        model=_model(whole.record("model")),
        parameters=_parameters(whole.record("parameters")),
        plan=_plan(whole, errors),
        progress=tuple(
            Progress(
                level=each.text("level"),
                at_s=_number_of(each, "seconds"),
                incumbent=each.optional_integer("incumbent"),
                bound=each.optional_integer("bound"),
                turn=each.integer("turn"),
            )
            for each in whole.records("progress")
        ),
        incumbents=tuple(
            Incumbent(
                levels=tuple(parse_level(level) for level in each.records("levels")),
                turn=each.integer("turn"),
                binds=each.texts_by_name("binds"),
            )
            for each in whole.records("incumbents")
        ),
    )
    is_partial = whole.boolean("partial")
    if not errors:
        _check(whole, "partial", is_partial, (result.is_partial, "ended"))
        _check(whole, "planSha256", whole.raw("planSha256"), (result.plan_sha256, "plan"))
    return None if errors else result, tuple(errors)


def _check(fields: Fields, name: str, given: object, found: tuple[object, str]) -> None:
    """Reject a computed field, such as a checksum, that contradicts its source fields."""
    value, origin = found
    if given != value:
        fields.reject(name, given, _CONTRADICTS.format(origin, json.dumps(value)))


def _files(fields: Fields, name: str) -> tuple[FileSum, ...]:
    return tuple(FileSum(f.text("path"), f.text("sha256")) for f in fields.records(name))


def _instance(fields: Fields) -> InstanceIdentity:
    found = InstanceIdentity(fields.text("path"), _files(fields, "files"))
    given = fields.text("sha256")
    if given:
        _check(fields, "sha256", given, (found.sha256, "files"))
    return found


def _model(fields: Fields) -> ModelIdentity:
    name, source, definition = (fields.text(n) for n in ("name", "source", "text"))
    found = ModelIdentity(name, source, definition, _files(fields, "plugins"))
    given = fields.text("sha256")
    if given:
        _check(fields, "sha256", given, (found.sha256, "text and plugins"))
    return found


def _parameters(fields: Fields) -> Parameters:
    has_limit, has_gap = (fields.raw(name) is not None for name in ("timeLimitSeconds", "gap"))
    found = Parameters(
        solver=fields.text("solver"),
        time_limit_s=_number_of(fields, "timeLimitSeconds") if has_limit else None,
        deterministic_s=_number_of(fields, "deterministicSeconds"),
        gap=_number_of(fields, "gap") if has_gap else None,
        seed=fields.integer("seed"),
        num_workers=fields.integer("workers"),
        schedulers=fields.texts("schedulers"),
    )
    given = fields.raw("deterministic")
    if isinstance(given, bool):
        _check(fields, "deterministic", given, (found.is_deterministic, "timeLimitSeconds"))
    else:
        fields.boolean("deterministic")
    return found


def _plan(whole: Fields, errors: list[FieldError]) -> PlanDocument | None:
    obj = whole.raw("plan")
    if obj is None:
        return None
    plan, found = parse_plan(obj)
    errors += [
        FieldError(f"plan.{e.path}" if e.path else "plan", e.value, e.message) for e in found
    ]
    return plan


def _number_of(fields: Fields, name: str) -> float:
    value = fields.raw(name)
    if value is None:
        return 0.0  # `Fields` has reported a missing required field.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        fields.reject(name, value, _NOT_A_NUMBER)
        return 0.0
    return float(value)
