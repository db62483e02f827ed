"""`optsched solve FILE.vbp`: pack vectors into as few bins as possible."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from optsched import __version__
from optsched.cli.base.command_errors import BAD_INPUT, NO_PLAN, NOT_WRITTEN, STOPPED
from optsched.cli.base.console import echo, print_text, stderr
from optsched.cli.base.options import JSON, TABLE, format_document, show_rows
from optsched.cli.base.path_arguments import (
    check_finite,
    check_outputs,
    check_path,
    is_standard,
    write_and_report,
)
from optsched.cli.offline.benchmark_instances import (
    STOPPED_BY_HAND,
    check_standard_output,
    form_of,
    search_options,
)
from optsched.formats.files.diagnostics import InstanceError
from optsched.kube.runtime.timing import SystemClock
from optsched.solver.cpsat.process import WorkerProcess
from optsched.study.packing.solve_packing import PackingWork, packings
from optsched.study.packing.vbp import file_of, packing_document, packing_list, read_vbps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from optsched.study.packing.solve_packing import PackingResult
    from optsched.study.packing.vbp import VbpInstance

DEFAULT_SECONDS: Final = 60.0
HEADINGS: Final = (
    *("instance", "items", "bins", "bound", "gap", "found by", "bound by", "seconds"),
    "stopped",
)


@dataclass(frozen=True, slots=True)
class Packed:
    """A vector bin packing instance and its packing."""

    instance: VbpInstance
    result: PackingResult
    seconds: float

    @property
    def gap(self) -> float:
        """The gap (bins - bound) / bins between the number of bins and its lower bound."""
        return (len(self.result.bins) - self.result.bound) / len(self.result.bins)


@click.command("solve")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@search_options(
    DEFAULT_SECONDS,
    "Seconds for each instance.",
    "Write the packings to this file: YAML for .yaml and .yml, otherwise JSON.",
)
def pack(files: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401  click checks them
    """Pack the items of each FILE into as few bins as possible, and prove a lower bound.

    FILE is a vector bin packing instance (.vbp), an archive of instances (.tar.gz), or a pattern
    for files in an archive: archive.tar.gz/class1_20_*. Prints the number of
    bins and its lower bound. If the command is stopped, it prints and writes the incumbents. The
    exit code is 0 if all instances were packed and verified, 2 for bad input, 3 if no packing was
    found, 4 if the file could not be written, and 130 after Ctrl-C.
    """
    console, form, out = stderr(), options["form"], options["out"]
    check_standard_output(out, form)
    if out is not None:
        check_outputs({"--out": [out]}, [file_of(Path(file)) for file in files])
    instances: list[VbpInstance] = []
    wrong: list[str] = []
    for given in files:
        check_path(given)
        check_finite(file_of(Path(given)))
        try:
            instances.extend(read_vbps(Path(given)))
        except InstanceError as e:
            wrong.append(str(e))
    for message in wrong:
        print_text(console, message, "red")
    if wrong:
        sys.exit(BAD_INPUT)
    packed: list[Packed] = []
    code = 0
    with closing(WorkerProcess()) as worker:
        for instance in instances:
            work = PackingWork(instance.problem, options["time_limit"], options["seed"])
            found, failure = _pack_instance(console, worker, instance, work)
            packed += [found] if found is not None else []
            code = failure or code
            if code == STOPPED:
                break
    if packed:
        is_needed = form != TABLE or out is not None
        whole = (
            packing_list([_build_document(each, options) for each in packed]) if is_needed else {}
        )
        if form == TABLE:
            show_rows(
                HEADINGS,
                [_format_row(each) for each in packed],
                console if is_standard(out) else None,
            )
        else:
            echo(format_document(whole, form), nl=False)
        if out is not None:
            text = format_document(whole, form_of(out) or JSON)
            if not write_and_report(console, out, text):
                code = code or NOT_WRITTEN
    sys.exit(code)


def _pack_instance(
    console: Console, worker: WorkerProcess, instance: VbpInstance, work: PackingWork
) -> tuple[Packed | None, int]:
    """Return the packing or None, and an exit code: 0 unless packing failed or was stopped."""
    clock, latest, code = SystemClock(), None, 0
    start_s = clock.monotonic()
    try:
        with console.status(f"packing {instance.problem.name}") as status:
            for latest in packings(worker, work):
                bins = f"{len(latest.bins)} bins, {latest.bound} at least"
                status.update(f"packing {instance.problem.name}: {bins}")
    except ValueError as e:
        print_text(console, str(e), "red")
        code = NO_PLAN
    except KeyboardInterrupt:
        code = STOPPED
        if latest is not None:
            latest = replace(latest, stopped=STOPPED_BY_HAND)
    if latest is None:
        return None, code
    return Packed(instance, latest, clock.monotonic() - start_s), code


def _build_document(packed: Packed, options: Mapping[str, Any]) -> dict[str, Any]:
    result = packed.result
    summary = {
        "bins": len(result.bins),
        "bound": result.bound,
        "gap": round(packed.gap, 6),
        "proved": result.is_proved,
        "foundBy": result.found_by,
        "boundBy": result.bound_by,
        "stopped": result.stopped,
        "seconds": round(packed.seconds, 3),
    }
    provenance = {
        "optsched": __version__,
        "ortools": version("ortools"),
        "seed": options["seed"],
        "timeLimitSeconds": options["time_limit"],
    }
    return packing_document(packed.instance, result.bins, summary, provenance)


def _format_row(packed: Packed) -> list[str]:
    result, problem = packed.result, packed.instance.problem
    return [
        *(problem.name, str(problem.num_items), str(len(result.bins)), f"≥ {result.bound}"),
        *(f"{100 * packed.gap:.3g} %" if packed.gap else "0", result.found_by, result.bound_by),
        *(f"{packed.seconds:.1f} s", result.stopped),
    ]
