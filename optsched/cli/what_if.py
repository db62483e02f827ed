"""`optsched what-if`: what would become of jobs that are not in the cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from optsched.api.kinds import JOB, find_kind
from optsched.cli.cluster import Exit, Failure, Place, cluster_options
from optsched.cli.deciding import surroundings
from optsched.cli.files import read_parts
from optsched.cli.options import Seconds, form_option, solver_option
from optsched.cli.output import JSON, TABLE, WIDE, YAML, show_rows, written
from optsched.cli.paths import Source
from optsched.cli.picture import MODEL, classes_in, from_file, live, policy_for
from optsched.cli.screen import echo, remarks, say
from optsched.controllers.job.expand import expand_job
from optsched.formats.index import READ_KINDS
from optsched.formats.pods import SCHEDULER_NAMES, DecodeOptions
from optsched.session.solving import DEFAULT_SECONDS, limits_of
from optsched.study.objects import Means
from optsched.study.whatif import Added, Clash, Start
from optsched.study.whatif import what_if as answers_of
from optsched.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.cli.files import Part
    from optsched.cli.picture import Cluster
    from optsched.domain.booking import Booking
    from optsched.kube.ports import Raw
    from optsched.policy.policy import Policy
    from optsched.study.whatif import Answer, Answers

UID: Final = "what-if"
"""Of jobs that nobody has made."""

_NONE: Final = "<none>"
_HEADINGS: Final = ("Name", "Starts", "Pods", "Nodes", "Evicts", "Expected", "Reason")
_WORDS: Final = {
    Start.NOW: "now",
    Start.SOON: "soon",
    Start.LATER: "later",
    Start.NEVER: "never",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for; see the help of `what-if`."""

    files: tuple[str, ...]
    namespace: str
    snapshot: Path | None
    model: str
    solver: str | None
    time_limit: float | None
    deterministic: bool
    names: tuple[str, ...]
    plugins_dir: Path | None


@click.command("what-if")
@cluster_options
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    required=True,
    help="A file with jobs, PodGroups, pods or others; - for the standard input. Again for more.",
)
@click.option("-n", "--namespace", default="", show_default="the current context's")
@click.option(
    "--snapshot",
    type=Source(),
    help="A file of `optsched snapshot`, or a folder of manifests, in the place of the cluster.",
)
@click.option("--model", default="", show_default=f"the cluster's, else {MODEL}")
@solver_option
@click.option(
    "--time-limit",
    type=Seconds(),
    help=f"Seconds for the solver; {DEFAULT_SECONDS:g} unless said otherwise.",
)
@click.option("--deterministic", is_flag=True, help="The same answer every time: reads no clock.")
@click.option(
    "--scheduler-name",
    "names",
    multiple=True,
    default=SCHEDULER_NAMES,
    show_default=True,
    help="Whose pods are decided; may be given again.",
)
@click.option(
    "--plugins-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Python files in this folder are plugins that the model may name.",
)
@form_option((TABLE, WIDE, JSON, YAML))
def what_if(place: Place, form: str, **given: Any) -> None:  # noqa: ANN401  click checks them
    """Say whether a job would start now, where, at whose cost, and if not, why and when.

    Nothing is made: the cluster is read once, and a session is held on a copy that has what the
    files say. Ends with 0 if all would start, 8 if some would wait, 9 if one could never start.
    """
    options = Options(**given)
    parts = [part for path in options.files for part in read_parts(path)]
    cluster = from_file(options.snapshot) if options.snapshot else live(place)
    policy = policy_for(cluster, options.model, options.solver, options.plugins_dir)
    added, later = _added(parts, cluster, options.namespace)
    found = _decided(cluster.objects, added, policy, options)
    if form in (JSON, YAML):
        click.echo(written(document(found, policy.name, later), form), nl=False)
    else:
        _show(found, later, wide=form == WIDE)
    starts = {answer.start for answer in found.asked}
    if Start.NEVER in starts:
        raise click.exceptions.Exit(Exit.NEVER)
    if Start.LATER in starts:
        raise click.exceptions.Exit(Exit.WAITS)


# --- what is added -------------------------------------------------------------------------------


def _added(
    parts: Iterable[Part], cluster: Cluster, namespace: str
) -> tuple[Added, dict[str, tuple[str, ...]]]:
    """What is to be added, and by gang the tasks whose pods come later."""
    parts = list(parts)
    classes = classes_in([*cluster.objects, *(part.value for part in parts)])
    inside = namespace or cluster.namespace
    objects: list[Raw] = []
    pods_of: dict[str, Sequence[Raw]] = {}
    later: dict[str, tuple[str, ...]] = {}
    problems: list[str] = []
    for part in parts:
        obj = _placed(part.value, inside)
        kind = find_kind(obj["apiVersion"], obj["kind"])
        if kind == JOB:
            expanded, errors = expand_job(obj, classes)
            problems += part.told(f"Job {obj['metadata']['name']}", errors)
            if expanded is not None:
                meta = expanded.group["metadata"]
                gang = f"{meta['namespace']}/{meta['name']}"
                objects.append(expanded.group)
                pods_of[gang], later[gang] = expanded.pods, expanded.later
        elif kind in READ_KINDS:
            objects.append(obj)
        else:
            said = f"{part.where()}: {obj['kind']} {obj['metadata']['name']} is left out"
            say(remarks(), f"{said}: no scheduler looks at it", "yellow")
    if problems:
        raise Failure("\n".join(problems), Exit.USAGE)
    return Added(objects, pods_of), later


def _placed(obj: Raw, namespace: str) -> Raw:
    """An object with a namespace if its kind has such; jobs get a UID."""
    kind = find_kind(obj["apiVersion"], obj["kind"])
    meta = obj["metadata"]
    if kind is not None and kind.namespaced:
        meta = {**meta, "namespace": meta.get("namespace") or namespace}
    if kind == JOB:
        meta = {**meta, "uid": UID}
    return {**obj, "metadata": meta}


# --- answers -------------------------------------------------------------------------------------


def _decided(objects: Sequence[Raw], added: Added, policy: Policy, options: Options) -> Answers:
    limits = limits_of(policy, options.time_limit, deterministic=options.deterministic)
    screen = remarks()
    with (
        screen.status(f"deciding with {policy.name}"),
        surroundings(policy, limits, deterministic=options.deterministic) as around,
    ):
        try:
            means = Means(policy, around, DecodeOptions(options.names))
            found = answers_of(objects, added, means)
        except Clash as e:
            text = f"{e}: give the job another name, or leave it out"
            raise Failure(text, Exit.CONFLICT) from e
    for problem in found.problems:
        say(screen, str(problem), "yellow")
    return found


def document(found: Answers, policy: str, later: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Answers for programs; docs/what-if.md describes the fields."""
    return {
        "apiVersion": "optsched.io/v1alpha1",
        "kind": "WhatIf",
        "takenAt": format_time(found.taken_ms),
        "policy": policy,
        "proved": found.certificate.is_proved,
        "asked": [_entry(answer, later.get(answer.gang, ())) for answer in found.asked],
        "startsNoMore": list(found.starts_no_more),
        "startsToo": list(found.starts_too),
    }


def _entry(answer: Answer, later: Sequence[str]) -> dict[str, Any]:
    reason, expected = answer.reason, answer.expected
    return {
        "name": shown(answer.gang),
        "starts": answer.start.value,
        "pods": answer.num_pods,
        "places": dict(answer.places),
        "evictions": [
            {"pod": v.pod, "node": v.node, "of": v.gang, "action": v.action} for v in answer.victims
        ],
        "reason": None
        if reason is None
        else {"code": reason.code.value, "message": reason.message},
        "expectedStart": None if expected is None else format_time(expected.start_ms),
        "isEarliest": expected is not None and expected.is_open,
        "laterTasks": list(later),
    }


def shown(gang: str) -> str:
    """A gang by the name of its job, as users know it."""
    return gang.removesuffix(f"-{UID}")


def _show(found: Answers, later: Mapping[str, Sequence[str]], *, wide: bool) -> None:
    if found.asked:
        show_rows(_HEADINGS, [_row(answer, wide=wide) for answer in found.asked])
    for answer in found.asked:
        if tasks := later.get(answer.gang):
            echo(f"{shown(answer.gang)}: pods of {', '.join(tasks)} come when others run")
    for keys, what in ((found.starts_no_more, "no more"), (found.starts_too, "too")):
        if keys:
            echo(f"would start {what}: {', '.join(keys)}")
    if not (found.asked or found.starts_no_more or found.starts_too):
        click.echo("nothing would change")


def _row(answer: Answer, *, wide: bool) -> tuple[str, ...]:
    victims = _pods_by_gang(answer) if not wide else [v.pod for v in answer.victims]
    nodes = [f"{pod}={node}" for pod, node in sorted(answer.places.items())] if wide else None
    return (
        shown(answer.gang),
        _WORDS[answer.start],
        f"{len(answer.places)}/{answer.num_pods}",
        ", ".join(_counted(answer.places.values()) if nodes is None else nodes) or _NONE,
        ", ".join(victims) or _NONE,
        _when(answer.expected),
        str(answer.reason) if answer.reason is not None else _NONE,
    )


def _pods_by_gang(answer: Answer) -> list[str]:
    return _counted(victim.gang or victim.pod for victim in answer.victims)


def _counted(names: Iterable[str]) -> list[str]:
    counts = sorted(Counter(names).items())
    return [f"{name} ×{number}" if number > 1 else name for name, number in counts]


def _when(expected: Booking | None) -> str:
    if expected is None:
        return _NONE
    text = format_time(expected.start_ms)
    return f"after {text}" if expected.is_open else text


if __name__ == "__main__":
    what_if()
