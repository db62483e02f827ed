"""docs/scheduler.md names every flag and metric, and docs/snapshot.md names every option."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from optsched.cli.live.snapshot_command import snapshot
from optsched.cli.services.scheduler import IGNORED, IGNORED_SWITCHES, scheduler
from optsched.kube.scheduler.metrics import Metrics
from tests.kube.scheduler.test_metrics import HALF, LARGE, POLICY, decide
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    import click

PAGE = (ROOT / "docs" / "scheduler.md").read_text("utf-8")
_NAMES = re.compile(r"`([^`]+)`")


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading."""
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names(cell: str) -> tuple[str, ...]:
    return tuple(_NAMES.findall(cell))


def flags(command: click.Command) -> set[str]:
    return {
        flag
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }


# --- flags ---------------------------------------------------------------------------------------


def test_every_flag_has_a_row() -> None:
    shown = [flag for row in rows(PAGE, "Flags") for flag in names(row[0])]
    assert len(shown) == len(set(shown))
    assert set(shown) == flags(scheduler) | {"--help"}


def test_defaults_are_those_of_the_command() -> None:
    default_of = {flag: p.default for p in scheduler.params for flag in p.opts}
    for row in rows(PAGE, "Flags"):
        shown, default = names(row[1]), default_of.get(names(row[0])[0])
        if isinstance(default, str | tuple) and default:
            expected = default if isinstance(default, tuple) else (str(default),)
            assert shown == expected, row


def test_every_flag_that_is_passed_over_is_named() -> None:
    paragraph = PAGE.split("are ignored with one warning:")[1].split("\n\n")[0]
    shown = names(paragraph)
    assert list(shown) == sorted(f"--{name}" for name in IGNORED | IGNORED_SWITCHES)


def test_every_option_of_snapshot_has_a_row() -> None:
    page = (ROOT / "docs" / "snapshot.md").read_text("utf-8")
    cells = re.findall(r"^\| (`--?[a-z][^|]*)\|", page, re.M)
    shown = [flag for cell in cells for flag in re.findall(r"`(--?[a-z]+)", cell)]
    assert len(shown) == len(set(shown))
    assert set(shown) == flags(snapshot)


# --- metrics -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    """The metrics of a process after one event of each type."""
    found = Metrics()
    report = decide(HALF, LARGE)
    trace = replace(report.trace, num_cut_searches={"search": 1})
    found.session(replace(report, trace=trace), POLICY, 0.1)
    found.add_wasted_time(1.0)
    found.pods.bound(0.1)
    found.pods.not_bound("Conflict")
    found.watch_failures.labels("pods").inc()
    found.refused_writes.labels("PodGroup", "Forbidden").inc()
    found.pods.evictions.labels("reclaim", "").inc()
    found.pods.spared.labels("ended").inc()
    found.pods.count_waiting = lambda: {"bind": 1}
    found.sessions.plugin_failures.labels("mine").inc()
    return found


def families(metrics: Metrics) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the name, the type and the labels of every exposed metric."""
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if not name.endswith("_created"):
            yield name, family.type, tuple(sorted(labels))


def test_every_metric_has_a_row(metrics: Metrics) -> None:
    shown = [
        (names(row[0])[0], row[1], tuple(sorted(names(row[2])))) for row in rows(PAGE, "Metrics")
    ]
    assert sorted(shown) == sorted(families(metrics))
