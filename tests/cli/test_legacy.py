"""The old commands: `-n` is the name, `-N` the namespace, and the environment sets defaults."""

from __future__ import annotations

import importlib
import tomllib
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from optsched.api.kinds import COMMAND, JOB, QUEUE
from optsched.cli import legacy
from tests.cli.clusters import CONTEXT, FakeCluster, job, queue
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from click.testing import Result


def run(name: str, *arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(getattr(legacy, name), arguments, env=environment)


def test_vsub_makes_a_job(cluster: FakeCluster) -> None:
    result = run("vsub", "-n", "a", "-N", "ml", "-c", "sleep 3", "-r", "2", "-m", "2")
    assert (result.exit_code, result.stdout) == (0, "run job a successfully\n")
    made = cluster.one(JOB)
    assert (made["metadata"]["name"], made["metadata"]["namespace"]) == ("a", "ml")
    assert (made["spec"]["schedulerName"], made["spec"]["minAvailable"]) == ("volcano", 2)
    (container,) = made["spec"]["tasks"][0]["template"]["spec"]["containers"]
    assert (container["image"], container["command"]) == ("busybox", ["sleep", "3"])


def test_vsub_takes_defaults_from_the_environment(cluster: FakeCluster) -> None:
    environment = {
        "VOLCANO_DEFAULT_IMAGE": "alpine",
        "VOLCANO_SCHEDULER_NAME": "mine",
        "VOLCANO_DEFAULT_JOB_NAMESPACE": "batch",
    }
    assert run("vsub", "-n", "a", **environment).exit_code == 0
    made = cluster.one(JOB)
    assert made["metadata"]["namespace"] == "batch"
    assert made["spec"]["schedulerName"] == "mine"
    (container,) = made["spec"]["tasks"][0]["template"]["spec"]["containers"]
    assert container["image"] == "alpine"
    assert run("vsub", "-n", "b", "-i", "x", "-S", "y", "-N", "z", **environment).exit_code == 0
    assert cluster.writes[-1][0].namespace == "z"
    assert cluster.writes[-1][1]["spec"]["schedulerName"] == "y"


def test_vjobs_lists_and_shows(cluster: FakeCluster) -> None:
    cluster.put(job("a", phase="Running"))
    cluster.put(job("b", "ml"))
    names = [line.split()[0] for line in run("vjobs").stdout.splitlines()]
    assert names == ["Name", "a"]
    assert run("vjobs", "-N", "ml", "-o", "name").stdout == "job.batch.volcano.sh/b\n"
    assert run("vjobs", "--all-namespaces", "--selector", "b").stdout.split()[-13:-11] == [
        "ml",
        "b",
    ]
    assert run("vjobs", "-n", "a").stdout.startswith("Name:         a\n")
    assert run("vjobs", "-n", "c").exit_code == 3


def test_vqueues_lists_and_shows(cluster: FakeCluster) -> None:
    for name in ("a", "b"):
        cluster.put(queue(name, status={"state": "Open", "running": 2}))
    headings, *rows = run("vqueues").stdout.splitlines()
    assert " ".join(headings.split()) == "Name Weight State Inqueue Pending Running Unknown"
    assert [" ".join(row.split()) for row in rows] == ["a 1 Open 0 0 2 0", "b 1 Open 0 0 2 0"]
    assert run("vqueues", "-n", "a").stdout.splitlines() == [headings, rows[0]]
    assert run("vqueues", "-n", "c").exit_code == 3
    assert cluster.of(QUEUE)


@pytest.mark.parametrize(("name", "action"), [("vsuspend", "AbortJob"), ("vresume", "ResumeJob")])
def test_vsuspend_and_vresume_are_commands(cluster: FakeCluster, name: str, action: str) -> None:
    cluster.put(job("a", "ml", phase="Running" if name == "vsuspend" else "Aborted"))
    result = run(name, "-N", "ml", "-n", "a")
    assert (result.exit_code, result.stdout) == (0, f"{name[1:]} job a successfully\n")
    assert cluster.one(COMMAND)["action"] == action


def test_vcancel_deletes(cluster: FakeCluster) -> None:
    cluster.put(job("a"))
    result = run("vcancel", "-n", "a")
    assert (result.exit_code, result.stdout) == (0, "cancel job a successfully\n")
    assert cluster.objects == {}
    assert run("vcancel", "-n", "a").stderr == (
        f"Error: job a does not exist in namespace {CONTEXT}\n"
    )


@pytest.mark.parametrize("name", ["vsub", "vcancel", "vsuspend", "vresume"])
def test_a_name_is_needed(cluster: FakeCluster, name: str) -> None:
    result = run(name, "-N", "ml")
    assert result.exit_code == 2
    assert "a name is missing: write the job's name after the command, or after -n" in result.stderr
    assert cluster.calls == []


def test_every_name_that_is_installed_is_a_command() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert {"vcctl", "kubectl-vc", "kubectl-optsched", "vsub", "vqueues"} < scripts.keys()
    for place in scripts.values():
        module, _, name = place.partition(":")
        assert isinstance(getattr(importlib.import_module(module), name), click.Command)
