"""Options of `optsched solve`, and the policies, files and solves that they define."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optsched import __version__
from optsched.cli.base.command_errors import BAD_INPUT, NOT_KEPT
from optsched.cli.base.console import print_text
from optsched.cli.base.path_arguments import KeepError, check_writable, is_standard
from optsched.cli.base.session_context import policy_of
from optsched.cli.offline.solve_model import Job, ModelFiles, earlier_result
from optsched.formats.snapshots.instance_files import instance_identity, versions
from optsched.session.offline import Assignment, model_identity, parameters_of
from optsched.session.solve_settings import limits_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import Console

    from optsched.formats.solve_result import InstanceIdentity
    from optsched.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class Options:
    """Values of the command line options; the help of `solve` describes them."""

    models: tuple[str, ...]
    solver: str | None
    time_limit: float | None
    gap: float | None
    seed: int
    deterministic: bool
    files: ModelFiles
    report: Path | None
    form: str
    progress: bool
    names: tuple[str, ...]
    everything: bool
    plugins_dir: Path | None
    strict: bool = False

    @property
    def prints_a_file(self) -> bool:
        """Whether a file is written to stdout; if so, tables are printed to stderr."""
        return any(map(is_standard, (self.files.out, self.files.result, self.report)))


def policies_of(console: Console, options: Options) -> Mapping[str, Policy]:
    """Return the policies, keyed by `--model` value; exit with 2 for duplicate values or names."""
    found: dict[str, Policy] = {}
    for model in options.models:
        if model in found:
            print_text(console, f"--model {model}: is given twice; give each model once", "red")
            sys.exit(BAD_INPUT)
        policy = policy_of(console, model, options.solver, options.plugins_dir)
        other = next((m for m, p in found.items() if p.name == policy.name), None)
        if other is not None:
            message = (
                f"--model {model}: has the same name as {other}: {policy.name}; give each name once"
            )
            print_text(console, message, "red")
            sys.exit(BAD_INPUT)
        found[model] = policy
    return found


def places_of(
    console: Console, options: Options, policies: Mapping[str, Policy]
) -> Mapping[str, ModelFiles]:
    """Return the file paths of each model; exit with 4 if an output file cannot be written."""
    if len(policies) == 1:
        found = dict.fromkeys(policies, options.files)
    else:
        found = {given: options.files.for_model(policy.name) for given, policy in policies.items()}
    try:
        for path in {p for places in found.values() for p in places.written()}:
            if len(policies) > 1:
                _make_folder(path.parent)
            check_writable(path)
    except KeepError as e:
        print_text(console, f"{e}; nothing was solved", "red")
        sys.exit(NOT_KEPT)
    return found


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise KeepError(
            f"{folder}: cannot be created: {e.strerror or e}; several models need a folder with a "
            "file for each"
        ) from e


def identity_of(console: Console, instance: Path) -> InstanceIdentity:
    """Return the paths and hashes of an instance's files; exit with 2 if one is unreadable."""
    try:
        return instance_identity(instance)
    except OSError as e:
        print_text(console, f"{e.filename}: cannot be read: {e.strerror}", "red")
        sys.exit(BAD_INPUT)


def job_of(
    console: Console,
    options: Options,
    model: tuple[str, Policy],
    identity: InstanceIdentity,
    places: ModelFiles,
) -> Job:
    """Return the solve for one model that the user named.

    The exit code is 2 if the result to resume from is missing, or is for another instance or model.
    """
    given, policy = model
    limits = limits_of(
        policy,
        options.time_limit,
        deterministic=options.deterministic,
        seed=options.seed,
        gap=options.gap,
    )
    # A command that reproduces the model's result; options for output files are omitted.
    command = ["optsched", "solve", identity.path, "--model", given]
    named = {
        "--solver": options.solver,
        "--time-limit": options.time_limit,
        "--gap": options.gap,
        "--seed": options.seed or None,
        "--plugins-dir": options.plugins_dir,
    }
    for name, value in named.items():
        if value is not None:
            command += [name, f"{value:g}" if isinstance(value, float) else str(value)]
    if options.deterministic:
        command.append("--deterministic")
    for name in options.names:
        command += ["--scheduler-name", name]
    assignment = Assignment(
        instance=identity,
        model=model_identity(policy, lambda path: path.read_text(encoding="utf-8")),
        parameters=parameters_of(policy, limits, options.names),
        versions=versions(__version__),
        command=tuple(command),
    )
    earlier = earlier_result(console, places.resume, assignment)
    return Job(policy, assignment, limits, places, earlier)
