"""Custom plugins on a real API server: a Python file, and an HTTP extender."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from optsched.cli.offline.solve_command import solve
from tests.kube.scheduler.test_extender_client import Service
from tests.support.api import until
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.live import Scheduler, Site

pytestmark = pytest.mark.e2e

EXTENDER = """actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: extender
    arguments:
      extender.urlPrefix: {url}
      extender.predicateVerb: predicate
      extender.onSessionOpenVerb: onSessionOpen
      extender.onSessionCloseVerb: onSessionClose
- plugins:
  - name: predicates
"""
OWN = """actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: predicates
  - name: maintenance
"""
STAGE = """actions: "enqueue, stage, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: predicates
"""
REPAIR = "lab.example/repair"


def nodes_of(site: Site, gang: str, size: int) -> list[str]:
    """Return the nodes of a gang's pods, sorted."""
    pods = [site.api.get(f"/api/v1/namespaces/{site.name}/pods/{gang}-{i}") for i in range(size)]
    return sorted(pod["spec"].get("nodeName", "") for pod in pods)


def test_a_service_keeps_a_gang_off_a_node(site: Site) -> None:
    """A14, K28: the cluster has 2 nodes of 4 CPUs, and the extender refuses one of them."""
    shut, free = site.nodes(2)
    refused = {shut}

    def predicate(body):
        name = body["node"]["Name"]
        return {"errorMessage": "reserved for a demo" if name in refused else ""}

    with Service(predicate=predicate).running() as service:
        config = site.file("extender.conf", EXTENDER.format(url=service.url))
        scheduler = site.scheduler("--config", str(config))
        site.gang("pair", 2)
        site.await_bound("pair", 2)
        assert nodes_of(site, "pair", 2) == [free, free]
        site.gang("big", 6)
        told = "1 node did not pass the extender (reserved for a demo)"
        site.await_waits("big", "NotEnoughResources", told)
        assert_replayed(scheduler, config)
        refused.clear()
        site.await_bound("big", 6)
        assert set(nodes_of(site, "big", 6)) == {shut, free}
        verbs = service.verbs()
    assert verbs[0] == "onSessionOpen"
    assert "onSessionClose" in verbs


def assert_replayed(scheduler: Scheduler, config: Path) -> None:
    """Check that a solve of the scheduler's dump, without the extender, gives the same result."""
    scheduler.process.send_signal(signal.SIGUSR2)
    folder = config.parent
    scheduler.await_log("snapshot dumped to")
    (dump,) = folder.glob("optsched-snapshot-*.json")
    found = CliRunner().invoke(solve, [str(dump), "--model", str(config)])
    assert found.exit_code == 0, found.output
    assert "reserved for a demo" in " ".join(found.output.split())
    assert "no answer" not in found.output


def test_a_plugin_of_a_folder_decides_and_a_broken_one_changes_nothing(site: Site) -> None:
    """A14: a Python plugin that the configuration names keeps GPU pods off a node."""
    repair, free = site.nodes(2)
    gpus = {"status": {"capacity": {"nvidia.com/gpu": "4"}, "allocatable": {"nvidia.com/gpu": "4"}}}
    for name in (repair, free):
        site.api.patch(f"/api/v1/nodes/{name}/status", gpus)
    site.api.patch(f"/api/v1/nodes/{repair}", {"metadata": {"labels": {REPAIR: "yes"}}})
    folder = site.file("plugins.conf", "").parent / "plugins"
    folder.mkdir()
    text = (ROOT / "instances" / "examples" / "plugins" / "maintenance.py").read_text()
    (folder / "maintenance.py").write_text(text)
    config = site.file("own.conf", OWN)
    asks = {"containers": [container("1")]}
    scheduler = site.scheduler("--config", str(config), "--plugins-dir", str(folder))
    site.gang("pair", 2, **asks)
    site.await_bound("pair", 2)
    assert nodes_of(site, "pair", 2) == [free, free]

    replace(folder / "maintenance.py", "PLUGIN = 3 / 0\n")
    scheduler.await_metric(1, "optsched_policy_rejected")
    scheduler.await_log("maintenance.py:1:1: cannot be loaded: ZeroDivisionError")
    site.gang("next", 2, **asks)
    site.await_bound("next", 2)
    assert nodes_of(site, "next", 2) == [free, free]

    broken = text.replace("return [", "return [").replace(
        "cheap = [", "raise RuntimeError('no meter')\n        cheap = ["
    )
    replace(folder / "maintenance.py", broken)
    scheduler.await_metric(0, "optsched_policy_rejected")
    site.gang("last", 1, containers=[container("0")])
    site.await_bound("last", 1)
    until(lambda: scheduler.metric("optsched_plugin_failures_total"), "failures are counted")
    scheduler.await_log("RuntimeError: no meter")


def test_an_action_of_a_folder_has_its_place_and_a_broken_one_costs_nothing(site: Site) -> None:
    """A14: a Python action in `actions` reserves the node `stage` for a demonstration."""
    stage, _ = site.nodes(2)
    site.api.patch(f"/api/v1/nodes/{stage}", {"metadata": {"labels": {"lab.example/stage": "y"}}})
    folder = site.file("stage.conf", "").parent / "plugins"
    folder.mkdir()
    text = (ROOT / "instances" / "examples" / "plugins" / "stage.py").read_text()
    (folder / "stage.py").write_text(text)
    config = site.file("stage.conf", STAGE)
    site.gang("first", 4)
    site.gang("show", 4, labels={"lab.example/demo": "yes"})
    scheduler = site.scheduler("--config", str(config), "--plugins-dir", str(folder))
    for gang in ("first", "show"):
        site.await_bound(gang, 4)
    assert nodes_of(site, "show", 4) == [stage] * 4
    assert stage not in nodes_of(site, "first", 4)

    replace(folder / "stage.py", text.replace("    stage = [", "    1 / 0\n    stage = ["))
    scheduler.await_log("reloaded")
    for gang in ("first", "show"):
        for i in range(4):
            site.api.delete(f"/api/v1/namespaces/{site.name}/pods/{gang}-{i}")
    site.gang("last", 2)
    site.await_bound("last", 2)
    assert "action stage failed at stage.py" in scheduler.log
    assert "ZeroDivisionError" in scheduler.log


SWAP = """
from optsched.plugin import Action, Displace, Place


def swap(view):
    \"\"\"Pods of `new` take the places of pods of `old`, one for one.\"\"\"
    waiting = [t for g in view.gangs if g.name == "new" for t in view.waiting[g.key]]
    old = [t for g in view.snapshot.gangs if g.name == "old" for t in g.tasks if t.node]
    for task, other in zip(waiting, old):
        yield Displace(other.key, task.gang)
        yield Place(task.key, other.node)


ACTION = Action("swap", "gives places of old to new", build=lambda arguments: swap)
"""


def test_an_action_has_pods_evicted_where_plugins_vote_for_it(site: Site) -> None:
    """A14: pods are evicted only for a gang of higher priority."""
    (node,) = site.nodes(1)
    folder = site.file("swap.conf", "").parent / "plugins"
    folder.mkdir()
    (folder / "swap.py").write_text(SWAP)
    conf = STAGE.replace("stage, allocate", "allocate, swap")
    config = site.file("swap.conf", conf)
    flags = ("--solver", "none", "--plugins-dir", str(folder))
    scheduler = site.scheduler(*flags, "--config", str(config))
    site.gang("old", 4, 1)
    site.await_bound("old", 4)
    high = site.priority("high", 1000)
    site.gang("new", 2, priorityClassName=high)
    site.await_bound("new", 2)
    assert nodes_of(site, "new", 2) == [node, node]
    scheduler.await_metric(2, "optsched_evictions_total", action="swap")
    assert site.story.num_bound("old") == 2


def replace(path: Path, text: str) -> None:
    """Replace a file atomically, so that no reader finds it empty."""
    fresh = path.with_suffix(".fresh")
    fresh.write_text(text)
    fresh.replace(path)


def container(gpus: str) -> dict[str, object]:
    """Return a container with one CPU and the given number of GPUs."""
    return {
        "name": "main",
        "image": "none",
        "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": gpus}},
    }
