"""docs/controllers.md names every flag, controller and metric."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from optsched.api.podgroup import PodGroupPhase
from optsched.cli.services.controllers import LOCK_NAME, controllers
from optsched.controllers.job.plugin_interface import KeyPair
from optsched.controllers.job.reconcile import Options as JobOptions
from optsched.controllers.registry import Options, all_controllers
from optsched.kube.controllers.executor import ControllerMetrics
from tests.docs.test_scheduler import flags, names, rows
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "controllers.md").read_text("utf-8")


def test_every_flag_has_a_row() -> None:
    shown = [flag for row in rows(PAGE, "Flags") for flag in names(row[0])]
    assert len(shown) == len(set(shown))
    assert set(shown) == flags(controllers) | {"--help"}


def test_defaults_are_those_of_the_command() -> None:
    default_of = {flag: p.default for p in controllers.params for flag in p.opts}
    for row in rows(PAGE, "Flags"):
        shown, default = names(row[1]), default_of.get(names(row[0])[0])
        if isinstance(default, str | tuple) and default:
            expected = default if isinstance(default, tuple) else (str(default),)
            assert shown == expected, row
    assert f"| `{LOCK_NAME}` | name of the lease |" in PAGE


def test_every_controller_has_a_row() -> None:
    table = PAGE.split("|---|---|\n")[1].split("\n\n")[0]
    shown = {name for line in table.splitlines() for name in names(line.split("|")[1])}
    options = Options(JobOptions(lambda: KeyPair("", "")))
    assert shown == {controller.name for controller in all_controllers(options)}


def test_every_metric_has_a_row() -> None:
    metrics = ControllerMetrics()
    metrics.depth.set_function(lambda: 0)
    metrics.count_groups = lambda: {phase: {"q": 1} for phase in PodGroupPhase}
    metrics.reconciled("job", "done", 0.1)
    metrics.writes.labels("create", "pods").inc()
    metrics.watch_failures.labels("pods").inc()
    families = text_string_to_metric_families(metrics.exposition().decode())
    found = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in families
        if not family.name.endswith("_created")
    }
    table = [line for line in PAGE.splitlines() if re.match(r"\| `(optsched|volcano)_", line)]
    shown: set[str] = set()
    for line in table:
        first, *rest = names(line.split("|")[1])
        stem = first.removesuffix("_pending_count")
        shown |= {first, *(name.replace("…", stem) for name in rest)}
    assert shown == found
