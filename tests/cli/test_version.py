"""Tests of `optsched version`, `optsched completion`, and the completion of object names."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from optsched import __version__
from optsched.cli.main import COMMANDS, main
from optsched.cli.version import kubectl_complete
from optsched.kube.client.errors import Unreachable
from tests.cli.clusters import CONTEXT, FakeCluster, job, optsched, queue

if TYPE_CHECKING:
    from pathlib import Path


def test_version_tells_itself_and_the_apis() -> None:
    assert f"Version:         {__version__}\n" in optsched("version").stdout
    assert optsched("version", "-o", "name").stdout == f"{__version__}\n"
    said = json.loads(optsched("version", "-o", "json").stdout)
    assert said["version"] == __version__
    assert "batch.volcano.sh/v1alpha1" in said["apiVersions"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_completes_the_program_by_its_name(shell: str) -> None:
    runner = CliRunner()
    for name, variable in (("vcctl", "_VCCTL_COMPLETE"), ("kubectl-vc", "_KUBECTL_VC_COMPLETE")):
        result = runner.invoke(main, ["completion", shell], prog_name=name)
        assert result.exit_code == 0
        assert f"{variable}={shell}_complete" in result.stdout
        assert name in result.stdout


def test_bash_takes_the_script(tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(optsched("completion", "bash").stdout)
    subprocess.run(["bash", "-n", script], check=True)


def completions(*words: str) -> list[str]:
    *before, begun = words
    complete = ShellComplete(main, {}, "optsched", "_OPTSCHED_COMPLETE")
    return [item.value for item in complete.get_completions(list(before), begun)]


def test_commands_and_names_are_completed(cluster: FakeCluster) -> None:
    for obj in (job("train-a"), job("train-b"), job("train-c", "ml"), queue("qa"), queue("qb")):
        cluster.put(obj)
    assert completions("jo") == ["job", "jobflow", "jobtemplate"]
    assert completions("job", "view", "train") == ["train-a", "train-b"]
    assert completions("job", "delete", "--namespace", "ml", "") == ["train-c"]
    assert completions("queue", "get", "-k", "there.conf", "q") == ["qa", "qb"]
    assert cluster.places[-1] == ("there.conf", "")
    assert completions("pod", "list", "-q", "qb") == ["qb"]


def test_kubectl_asks_for_completions_of_its_plugin(cluster: FakeCluster) -> None:
    cluster.put(job("train-a"))
    for words, lines in {
        ("job", "vi"): ["view"],
        ("job", "view", "-n", CONTEXT, "t"): ["train-a"],
        ("job", "run", "--sch"): ["--scheduler"],
        (): [*COMMANDS],
    }.items():
        result = CliRunner().invoke(kubectl_complete, words)
        assert result.stdout.splitlines() == [*lines, ":4"]


def test_a_cluster_that_is_away_completes_nothing(cluster: FakeCluster) -> None:
    cluster.refuse("list", Unreachable("GET /: refused"))
    assert completions("queue", "get", "") == []


def test_summaries_begin_the_help_of_their_commands() -> None:
    context = click.Context(main)
    for name, entry in COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        assert " ".join((command.help or "").split("\n\n")[0].split()) == entry.summary


def test_help_imports_no_command() -> None:
    """The solver takes a second to load, while help takes a tenth of a second."""
    code = (
        "import sys; from click.testing import CliRunner; from optsched.cli.main import main; "
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0; "
        "assert not {'numpy', 'ortools', 'kubernetes', 'optsched.cli.offline.solve_command'} "
        "& {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_tells_every_command() -> None:
    result = optsched("--help")
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.stdout
    unknown = optsched("jobs")
    assert unknown.exit_code == 2
