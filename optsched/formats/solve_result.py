"""The result of `optsched solve` as a file, and back: kind SolveResult, explained in docs/solve.md.

It holds what a plan file holds, how the search went, and everything needed to make it again.
`deploy/schemas/solveresult.v1alpha1.json` is the format: the reader here and other programs follow
it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from optsched.api.fields import Fields
from optsched.cluster.decisions import Incumbent, Progress, SolveStatus, relative_gap
from optsched.formats.codec.snapshot_annotations import API_VERSION
from optsched.formats.plan import (
    PlanDocument,
    encode_level,
    encode_plan,
    parse_level,
    parse_plan,
    published_schema,
    written,
)
from optsched.units import FieldError
from optsched.units.plaintext import write_json
from optsched.units.read_errors import why_unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.decisions import LevelResult

KIND: Final = "SolveResult"
LIST: Final = "SolveResultList"

_NOT_A_NUMBER: Final = "is not a number of zero or more"
_CONTRADICTS: Final = "contradicts {}: that makes {}"


def checksum(source: str | bytes) -> str:
    """SHA-256 of bytes, or of a text in UTF-8, in hexadecimal."""
    return sha256(source.encode() if isinstance(source, str) else source).hexdigest()


@dataclass(frozen=True, slots=True)
class FileSum:
    """A file and the SHA-256 of its bytes."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class InstanceIdentity:
    """Which instance was solved.

    Attributes
    ----------
    path
        As it was given.
    files
        The files read of it, by name relative to the path.

    """

    path: str
    files: tuple[FileSum, ...] = ()

    @property
    def sha256(self) -> str:
        """SHA-256 over a line `SUM  NAME` for each file, in order of names, as `sha256sum` says."""
        lines = (f"{f.sha256}  {f.path}\n" for f in sorted(self.files, key=lambda f: f.path))
        return checksum("".join(lines))


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Which model decided.

    Attributes
    ----------
    name, source
        Its name, and where it was read: a file, or `model NAME` for those that are shipped.
    text
        Its definition in full. Values under keys that speak of passwords are starred.
    plugins
        Files of plugins that it may have used.

    """

    name: str
    source: str
    text: str
    plugins: tuple[FileSum, ...] = ()

    @property
    def sha256(self) -> str:
        """SHA-256 of the definition, followed by a line `SUM  NAME` for each file of plugins."""
        lines = (f"{f.sha256}  {f.path}\n" for f in sorted(self.plugins, key=lambda f: f.path))
        return checksum("".join([self.text, *lines]))


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a solve.

    Attributes
    ----------
    solver
        `cpsat`, or `none` for the greedy pipeline alone.
    time_limit_s
        Wall time of one search of the session; None where no clock was read.
    deterministic_s
        Solver work for each level in CP-SAT's deterministic seconds.
    gap
        Relative gap that is good enough for a level; None: only the optimum is.
    seed, num_workers
        For everything random; threads of CP-SAT.
    schedulers
        Pods of these were decided.

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
        """Whether no clock was read."""
        return self.time_limit_s is None


@dataclass(frozen=True, slots=True)
class SolveResult:
    """The outcome of a solve, its progress, and everything needed to reproduce it.

    Attributes
    ----------
    ended
        Why; anything but COMPLETE marks a partial result.
    versions
        By name: optsched, python, ortools, numpy, scipy.
    command
        Words that do it again: options that only say what to write or print are left out.
    instance, model, parameters
        The instance, the model and the solver of a result.
    plan
        Verified. None where the solve was killed before there was one.
    progress
        In order of time; the first entries are the greedy plan's.
    incumbents
        The best solution of each search, from which `--resume` continues. Not verified.

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
        """Whether more could have been found or proved."""
        return self.ended is not SolveStatus.COMPLETE

    @property
    def plan_sha256(self) -> str | None:
        """SHA-256 of the plan's file as `--out` writes it; None without a plan."""
        return None if self.plan is None else checksum(written(self.plan))


# --- writing -------------------------------------------------------------------------------------


def write_result(result: SolveResult) -> str:
    """The text of a result's file: JSON with keys in order, the same for the same result."""
    return _text(encode_result(result))


def write_results(results: tuple[SolveResult, ...]) -> str:
    """Several results as one object of kind SolveResultList."""
    items = [encode_result(each) for each in results]
    return _text({"apiVersion": API_VERSION, "kind": LIST, "items": items})


def _text(obj: object) -> str:
    return f"{write_json(obj, indent=2, sort_keys=True)}\n"


def encode_result(result: SolveResult) -> dict[str, Any]:
    """The plain object of a result's file."""
    levels = () if result.plan is None else result.plan.certificate.levels
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
        "parameters": _encode_parameters(result.parameters),
        "levels": [_encode_level(level) for level in levels],
        "progress": [_encode_progress(each) for each in result.progress],
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


def _encode_parameters(parameters: Parameters) -> dict[str, Any]:
    return {
        "solver": parameters.solver,
        "timeLimitSeconds": parameters.time_limit_s,
        "deterministic": parameters.is_deterministic,
        "deterministicSeconds": parameters.deterministic_s,
        "gap": parameters.gap,
        "seed": parameters.seed,
        "workers": parameters.num_workers,
        "schedulers": list(parameters.schedulers),
    }


def _encode_level(level: LevelResult) -> dict[str, Any]:
    relative = None if level.bound is None else relative_gap(level.value, level.bound)
    return {**encode_level(level), "gap": level.gap, "relativeGap": relative}


def _encode_progress(progress: Progress) -> dict[str, Any]:
    return {
        "level": progress.level,
        "turn": progress.turn,
        "seconds": progress.at_s,
        "incumbent": progress.incumbent,
        "bound": progress.bound,
    }


# --- reading -------------------------------------------------------------------------------------


def read_result(source: str) -> tuple[SolveResult | None, tuple[FieldError, ...]]:
    """The result in the text of a file; None with every error where it is no result."""
    try:
        obj = json.loads(source)
    except (ValueError, RecursionError) as e:
        return None, (FieldError("result", source, f"is not JSON: {why_unreadable(e)}"),)
    return parse_result(obj)


def parse_result(obj: object) -> tuple[SolveResult | None, tuple[FieldError, ...]]:
    """The result in a plain object; None with every error where it is no result."""
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
        progress=tuple(_progress(each) for each in whole.records("progress")),
        incumbents=tuple(_incumbent(each) for each in whole.records("incumbents")),
    )
    is_partial = whole.boolean("partial")
    if not errors:
        _check(whole, "partial", is_partial, (result.is_partial, "ended"))
        _check(whole, "planSha256", whole.raw("planSha256"), (result.plan_sha256, "plan"))
    return None if errors else result, tuple(errors)


def _check(fields: Fields, name: str, told: object, found: tuple[object, str]) -> None:
    """Note where a field contradicts the field it follows from."""
    value, origin = found
    if told != value:
        fields.reject(name, told, _CONTRADICTS.format(origin, json.dumps(value)))


def _files(fields: Fields, name: str) -> tuple[FileSum, ...]:
    return tuple(FileSum(f.text("path"), f.text("sha256")) for f in fields.records(name))


def _instance(fields: Fields) -> InstanceIdentity:
    found = InstanceIdentity(fields.text("path"), _files(fields, "files"))
    told = fields.text("sha256")
    if told:
        _check(fields, "sha256", told, (found.sha256, "files"))
    return found


def _model(fields: Fields) -> ModelIdentity:
    name, source, definition = (fields.text(n) for n in ("name", "source", "text"))
    found = ModelIdentity(name, source, definition, _files(fields, "plugins"))
    told = fields.text("sha256")
    if told:
        _check(fields, "sha256", told, (found.sha256, "text and plugins"))
    return found


def _parameters(fields: Fields) -> Parameters:
    found = Parameters(
        solver=fields.text("solver"),
        time_limit_s=_optional_number(fields, "timeLimitSeconds"),
        deterministic_s=_number_of(fields, "deterministicSeconds"),
        gap=_optional_number(fields, "gap"),
        seed=fields.integer("seed"),
        num_workers=fields.integer("workers"),
        schedulers=fields.texts("schedulers"),
    )
    told = fields.raw("deterministic")
    if isinstance(told, bool):
        _check(fields, "deterministic", told, (found.is_deterministic, "timeLimitSeconds"))
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


def _progress(fields: Fields) -> Progress:
    return Progress(
        level=fields.text("level"),
        at_s=_number_of(fields, "seconds"),
        incumbent=fields.optional_integer("incumbent"),
        bound=fields.optional_integer("bound"),
        turn=fields.integer("turn"),
    )


def _incumbent(fields: Fields) -> Incumbent:
    levels = tuple(parse_level(each) for each in fields.records("levels"))
    return Incumbent(fields.integer("turn"), fields.texts_by_name("binds"), levels)


def _optional_number(fields: Fields, name: str) -> float | None:
    return None if fields.raw(name) is None else _number_of(fields, name)


def _number_of(fields: Fields, name: str) -> float:
    value = fields.raw(name)
    if value is None:
        return 0.0  # reported as missing where it is required
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        fields.reject(name, value, _NOT_A_NUMBER)
        return 0.0
    return float(value)
