"""The commands, flags, columns and keys of `vcctl` that scripts rely on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import click
import pytest

from optsched.cli.base.options import FORMATS
from optsched.cli.main import main
from tests.cli.clusters import CONTEXT, FakeCluster, answer, job, optsched, pod, queue, values

if TYPE_CHECKING:
    from pathlib import Path

CLUSTER: Final = ("--master", "-s", "--kubeconfig", "-k")
FLAGS: Final = {
    "job run": (
        *("-N", "--name", "-n", "--namespace", "-i", "--image", "-m", "--min", "-r", "--replicas"),
        *("-R", "--requests", "-L", "--limits", "-S", "--scheduler", "-f", "--filename"),
    ),
    "job list": ("-n", "--namespace", "--all-namespaces", "-q", "-S", "--scheduler", "--selector"),
    "job view": ("-n", "-N", "--name", "--namespace"),
    "job suspend": ("-n", "-N", "--name", "--namespace"),
    "job resume": ("-n", "-N", "--name", "--namespace"),
    "job delete": ("-n", "-N", "--name", "--namespace"),
    "queue create": ("-n", "--name", "-w", "--weight", "-S", "--state"),
    "queue delete": ("-n", "--name"),
    "queue operate": ("-n", "--name", "-a", "--action", "-w", "--weight"),
    "queue get": ("-n", "--name"),
    "queue list": (),
    "jobtemplate create": ("-f", "--file"),
    "jobtemplate list": ("-n", "--namespace"),
    "jobtemplate get": ("-n", "-N"),
    "jobtemplate delete": ("-f", "--file", "-n", "-N"),
    "jobtemplate describe": ("-n", "-N", "-o", "--format"),
    "jobflow create": ("-f", "--file"),
    "jobflow list": ("-n", "--namespace", "--all-namespaces"),
    "jobflow get": ("-n", "-N"),
    "jobflow delete": ("-f", "--file", "-n", "-N"),
    "jobflow describe": ("-n", "-N", "-o", "--format"),
    "pod list": ("-q", "--queue", "-j", "--job", "-n", "--namespace", "--all-namespaces"),
}
"""Of each command of `vcctl`, what it may be given."""

WIDE: Final = {
    "queue list": (
        "Name Weight State Parent Inqueue Pending Running Unknown Completed "
        "Priority Reclaimable Allocated Deserved Capability Guarantee Age"
    ),
    "job list": (
        "Name Creation Phase JobType Replicas Min Pending Running Succeeded Failed Unknown "
        "RetryCount Queue PriorityClass Scheduler Duration Age Reason Message"
    ),
    "jobflow list": "Name Namespace Phase Age Jobs Pending Running Completed Failed Retain",
    "jobtemplate list": "Name Namespace Queue Replicas Min Age",
    "pod list": "Name Ready Status Restart Age Node Job Task Queue",
}
"""Of each list, the headings with `-o wide`."""


def command(words: str) -> click.Command:
    found: click.Command = main
    for word in words.split():
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), word)
        assert inner is not None, word
        found = inner
    return found


def options(words: str) -> set[str]:
    """Return all options of a command that begin with a dash."""
    return {flag for param in command(words).params for flag in param.opts if flag[0] == "-"}


@pytest.mark.parametrize("words", FLAGS)
def test_every_flag_of_vcctl_is_one_of_ours(words: str) -> None:
    assert {*FLAGS[words], *CLUSTER} <= options(words)


@pytest.mark.parametrize("words", [*FLAGS, "job watch", "version"])
def test_every_answer_may_be_for_programs(words: str) -> None:
    (form,) = (param for param in command(words).params if "-o" in param.opts)
    assert isinstance(form.type, click.Choice)
    assert tuple(form.type.choices) == FORMATS


# --- columns and keys ----------------------------------------------------------------------------

POD: Final = pod("one", labels={"volcano.sh/job-name": "one"})
TASK: Final = {"name": "a", "replicas": 1, "template": {"spec": {"containers": []}}}


def made(kind: str, spec: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "flow.volcano.sh/v1alpha1",
        "kind": kind,
        "metadata": {"name": "one", "namespace": CONTEXT, "managedFields": [{"manager": "x"}]},
        "spec": spec,
        "status": status,
    }


@pytest.fixture
def full(cluster: FakeCluster) -> FakeCluster:
    """Return a cluster with one object of each kind."""
    one = job("one", phase="Running", running=1)
    flow = made("JobFlow", {"flows": [{"name": "a"}]}, state={"phase": "Running"})
    for obj in (one, queue("one"), flow, made("JobTemplate", {"tasks": [TASK]}), POD):
        cluster.put(obj)
    return cluster


@pytest.mark.parametrize("words", WIDE)
def test_the_columns_of_vcctl_come_first_and_none_is_lost(full: FakeCluster, words: str) -> None:
    wide = optsched(*words.split(), "-o", "wide").stdout.splitlines()
    assert wide[0].split() == WIDE[words].split()
    table = optsched(*words.split()).stdout.splitlines()[0].split()
    assert wide[0].split()[: len(table)] == table


@pytest.mark.parametrize("words", WIDE)
def test_keys_of_lists_stay(full: FakeCluster, words: str) -> None:
    whole = answer(optsched(*words.split(), "-o", "json"))
    assert list(whole) == ["apiVersion", "items", "kind", "metadata"]
    [item] = whole["items"]
    assert list(item) == ["apiVersion", "kind", "metadata", "spec", "status"]
    assert "managedFields" not in item["metadata"]
    assert values(optsched(*words.split(), "-o", "yaml").stdout) == [whole]


ONE: Final = ("queue get", "job view", "jobflow get", "jobflow describe", "jobtemplate get")


@pytest.mark.parametrize("words", ONE)
def test_keys_of_objects_stay(full: FakeCluster, words: str) -> None:
    item = answer(optsched(*words.split(), "one", "-o", "json"))
    assert list(item) == ["apiVersion", "kind", "metadata", "spec", "status"]
    assert item["metadata"]["name"] == "one"
    assert values(optsched(*words.split(), "one", "-o", "yaml").stdout) == [item]


DONE: Final = {
    "queue create two": ("Queue", "two"),
    "queue operate one -a update -w 3": ("Queue", "one"),
    "queue operate one -a close": ("Queue", "one"),
    "queue delete one": ("Queue", "one"),
    "job run two": ("Job", "two"),
    "job delete one": ("Job", "one"),
    "jobflow delete -n one": ("JobFlow", "one"),
}


@pytest.mark.parametrize("words", DONE)
def test_what_is_done_is_an_object_for_programs(full: FakeCluster, words: str) -> None:
    said = answer(optsched(*words.split(), "-o", "json"))
    assert (said["kind"], said["metadata"]["name"]) == DONE[words]
    assert {"apiVersion", "kind", "metadata", "spec"} <= said.keys()


@pytest.mark.parametrize(("word", "action"), [("suspend", "AbortJob"), ("resume", "ResumeJob")])
def test_what_is_asked_for_is_a_command(full: FakeCluster, word: str, action: str) -> None:
    said = answer(optsched("job", word, "one", "-o", "json"))
    assert list(said) == ["action", "apiVersion", "kind", "metadata", "target"]
    assert (said["kind"], said["action"]) == ("Command", action)
    assert said["target"]["name"] == "one"


def test_keys_of_the_version_stay() -> None:
    said = answer(optsched("version", "-o", "json"))
    assert list(said) == ["apiVersions", "platform", "pythonVersion", "version"]


@pytest.mark.parametrize("words", [*WIDE, "queue list --tree", "job view one", "--help"])
def test_there_are_no_colours_but_on_a_terminal(full: FakeCluster, words: str) -> None:
    assert "\x1b" not in optsched(*words.split(), env={"TERM": "xterm-256color"}).output


# --- completion in shells ------------------------------------------------------------------------

SOURCED: Final = {
    "bash": (
        "source <(vcctl completion bash); complete -p vcctl >&2; "
        "COMP_WORDS=(vcctl job vi); COMP_CWORD=2; _vcctl_completion vcctl; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    ),
    "zsh": (
        "autoload -Uz compinit; compinit -u -D; source <(vcctl completion zsh); "
        'print -u2 ${_comps[vcctl]:?}; COMP_WORDS="vcctl job vi" COMP_CWORD=2 '
        '_VCCTL_COMPLETE=zsh_complete vcctl | sed -n "2p;3q"'
    ),
    "fish": ("vcctl completion fish | source; complete -C 'vcctl job vi' | string split -f 1 \\t"),
}


@pytest.mark.parametrize("shell", SOURCED)
def test_a_shell_completes_what_is_typed(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    stub = tmp_path / "vcctl"
    run = "from optsched.cli.main import main; main(prog_name='vcctl')"
    stub.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{run}" "$@"\n')
    stub.chmod(0o755)
    places = os.pathsep.join((str(tmp_path), os.environ["PATH"]))
    environment = {**os.environ, "PATH": places, "HOME": str(tmp_path)}
    said = subprocess.run(
        [program, *(["-f"] if shell == "zsh" else []), "-c", SOURCED[shell]],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == ["view"], said.stderr
