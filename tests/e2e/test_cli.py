"""Commands on a real cluster that runs the project's controllers and scheduler."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING, Any, Final

import pytest
from click.testing import CliRunner

from optsched.cli import legacy
from optsched.cli.main import main
from tests.cli.clusters import values
from tests.cli.test_exit_codes import ACTS, run
from tests.support.api import until
from tests.support.live import QUEUES
from tests.support.pages import ROOT
from tests.support.webhooks import SYSTEM, Webhook, free_port, make_namespace, registered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from optsched.local.plane import ControlPlane
    from tests.support.api import Api
    from tests.support.live import Site
    from tests.support.shell import Shell

pytestmark = pytest.mark.e2e

JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/{}/jobs"
COMMANDS = "/apis/bus.volcano.sh/v1alpha1/namespaces/{}/commands"
SPELLINGS = ["-n {}", "-N {} -n {ns}"]
"""How a job is named: as the guides do, and as vcctl does."""


def row(text: str, name: str) -> dict[str, str]:
    """Return the table row that begins with a name, keyed by column heading."""
    headings, *lines = (line.split() for line in text.splitlines())
    (cells,) = (cells for cells in lines if cells[0] == name)
    return dict(zip(headings, cells, strict=True))


def await_row(show: Callable[[], dict[str, str]], **cells: str) -> None:
    """Wait until a table row contains the given cells."""
    until(lambda: cells.items() <= show().items(), f"a line says {cells}")


def phase(site: Site, name: str) -> str:
    job = site.api.find(f"{JOBS.format(site.name)}/{name}")
    return "" if job is None else str(job.get("status", {}).get("state", {}).get("phase", ""))


def await_phase(site: Site, name: str, wanted: str) -> None:
    until(lambda: phase(site, name) == wanted, f"{name} is {wanted}, not {phase(site, name)}")


def pods_of(site: Site, name: str) -> list[str]:
    """Return the names of a job's pods."""
    path = f"/api/v1/namespaces/{site.name}/pods"
    found = site.api.items(path, labelSelector=f"volcano.sh/job-name={name}")
    return sorted(pod["metadata"]["name"] for pod in found)


def manifest(site: Site, name: str, replicas: int = 2) -> dict[str, Any]:
    container = {"name": "main", "image": "none"}
    spec = {"restartPolicy": "Never", "containers": [container]}
    task = {"name": "w", "replicas": replicas, "template": {"spec": spec}}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"schedulerName": site.name, "minAvailable": replicas, "tasks": [task]},
    }


# --- queues --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["-n {}", "{}"])
def test_queues_are_created_operated_and_deleted(
    site: Site, shell: Shell, spelling: str, control_plane: ControlPlane
) -> None:
    site.controllers()
    name = f"{site.name}-q"
    meant = spelling.format(name)
    assert shell(f"queue create {meant} -w 2") == f"create queue {name} successfully\n"
    try:
        await_row(lambda: row(shell("queue list"), name), Parent="root", State="Open")
        seen = row(shell(f"queue get {meant}"), name)
        headings = "Name Weight State Parent Inqueue Pending Running Unknown Completed"
        assert " ".join(seen) == headings
        assert (seen["Weight"], seen["State"], seen["Parent"]) == ("2", "Open", "root")

        shell(f"queue operate {meant} -a update -w 7 --capability cpu=4")
        stored = shell.json(f"queue get {meant}")
        assert (stored["spec"]["weight"], stored["spec"]["capability"]) == (7, {"cpu": "4"})
        # Controllers may update the queue between the two commands.
        until(
            lambda: (
                shell.json(f"queue get {meant}") == values(shell(f"queue get {meant} -o yaml"))[0]
            ),
            "both are the same",
        )
        for action, state in (("close", "Closed"), ("open", "Open")):
            shell(f"queue operate {meant} --action {action}")
            await_row(lambda: row(shell("queue list"), name), State=state)

        child = f"{name}-child"
        shell(f"queue create {child} --parent {name}")
        assert f"└─ {child}" in shell("queue list --tree")
        refused = shell.try_(f"queue delete {meant}")
        assert refused.exit_code == 4
        why = f"its child queues are {child}"
        assert refused.stderr == f"Error: queue {name} is not deleted: {why}\n"
        shell(f"queue delete {child}")

        columns = control_plane.kubectl("get", "queue", name, "-o", "wide").splitlines()[0].split()
        assert {"STATE", "WEIGHT", "PARENT", "RUNNING", "PENDING"} < set(columns)
    finally:
        for obj in (f"{name}-child", name):
            shell.try_(f"queue delete {obj}")
    assert site.api.find(f"{QUEUES}/{name}") is None
    assert shell.try_(f"queue get {meant}").exit_code == 3


def test_queues_that_are_needed_stay(site: Site, shell: Shell) -> None:
    queue = site.queue("used")
    site.api.patch(f"{QUEUES}/{queue}/status", {"status": {"allocated": {"cpu": "3", "pods": "1"}}})
    result = shell.try_(f"queue delete -n {queue}")
    assert result.exit_code == 4
    assert result.stderr == f"Error: queue {queue} is not deleted: its pods hold cpu=3,pods=1\n"
    site.api.patch(f"{QUEUES}/{queue}/status", {"status": {"allocated": {"cpu": "0", "pods": "0"}}})
    assert shell(f"-n {queue}", legacy.vqueues).count("\n") == 2
    assert shell.try_(f"queue create -n {queue}").exit_code == 4
    shell(f"queue delete -n {queue}")


def test_operating_a_queue_says_what_has_no_effect(site: Site, shell: Shell) -> None:
    """No Command is created: a running controller would have executed it during the test."""
    # The scheduler creates the root queue.
    site.scheduler()
    site.controllers()
    until(lambda: site.api.find(f"{QUEUES}/root"), "the root is there")
    names = [f"{site.name}-{name}" for name in ("dept", "team")]
    dept, team = names
    try:
        shell(f"queue create {dept}")
        shell(f"queue create {team} --parent {dept}")
        for name in (*names, "root"):
            await_row(lambda name=name: row(shell("queue list"), name), State="Open")  # type: ignore[misc]
        root = "queue root cannot be closed: every other queue is below it"
        assert refusal(shell, "queue operate root --action close") == root
        assert refusal(shell, "queue operate -n root -a close") == root
        assert shell(f"queue operate {team} -a open") == f"queue {team} is Open already\n"

        assert shell(f"queue operate {dept} -a close") == f"close queue {dept} successfully\n"
        for name in names:
            await_row(lambda name=name: row(shell("queue list"), name), State="Closed")  # type: ignore[misc]
        assert shell(f"queue operate {dept} -a close") == f"queue {dept} is Closed already\n"
        assert refusal(shell, f"queue operate {team} -a open") == (
            f"queue {team} stays closed while its parent {dept} is closed: open {dept} first"
        )
        weight = int(row(shell("queue list"), team)["Weight"])
        same = shell(f"queue operate {team} -a update -w {weight}")
        assert same == f"queue {team} already has these values\n"
        assert "has no effect" in refusal(shell, "queue operate root -a update -w 3")
        none = refusal(shell, f"queue operate {team} -a update", code=2)
        wanted = "nothing to update: give --weight, --capability or another field (see "
        assert none.startswith(wanted)
        mixed = refusal(shell, f"queue operate {team} -a open -w 2", code=2)
        assert mixed.startswith("--weight is valid only with --action update (see ")
        assert row(shell("queue list"), "root")["State"] == "Open"
        reasons = [event["reason"] for name in names for event in site.events(name, "", "default")]
        assert sorted(set(reasons)) == ["CloseQueue"]
        assert site.api.items(COMMANDS.format(site.name)) == []
    finally:
        for name in reversed(names):
            site.api.delete(f"{QUEUES}/{name}")


def refusal(shell: Shell, line: str, code: int = 4) -> str:
    """Return the error message of a command that refuses an operation."""
    result = shell.try_(line)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    return result.stderr.splitlines()[-1].removeprefix("Error: ")


# --- jobs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_jobs_are_viewed_suspended_resumed_and_deleted(
    site: Site, shell: Shell, spelling: str
) -> None:
    site.nodes(1)
    site.controllers()
    site.scheduler()
    name = "my-job"
    meant = spelling.format(name, ns=site.name)
    shell(f"job run -N {name} -r 2 -m 2 -S {site.name} -R cpu=1")
    await_phase(site, name, "Running")
    seen = row(shell("job list"), name)
    assert (seen["Phase"], seen["Replicas"], seen["Min"], seen["Running"]) == ("Running", *"222")
    text = shell(f"job view {meant}")
    assert text.startswith(f"Name:         {name}\nNamespace:    {site.name}\n")
    assert "Phase:" in text
    assert "\nEvents:" in text

    shell(f"job suspend {meant}")
    await_phase(site, name, "Aborted")
    until(lambda: not pods_of(site, name), "its pods are gone")
    shell(f"job resume {meant}")
    await_phase(site, name, "Running")
    shell(f"job delete {meant}")
    until(lambda: not pods_of(site, name), "its pods are gone")
    gone = shell.try_(f"job view {meant}")
    assert gone.exit_code == 3
    assert gone.stderr == f"Error: job {name} does not exist in namespace {site.name}\n"


def test_the_columns_are_those_of_vcctl_and_of_kubectl(
    site: Site, shell: Shell, control_plane: ControlPlane
) -> None:
    counts = {"pending": 1, "running": 2, "minAvailable": 3, "retryCount": 1}
    site.api.post(JOBS.format(site.name), manifest(site, "a", 3))
    state = {"phase": "Running", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    path = f"{JOBS.format(site.name)}/a/status"
    site.api.patch(path, {"status": {"state": state, **counts}})
    seen = row(shell("job list"), "a")
    assert " ".join(list(seen)[2:]) == (
        "Phase JobType Replicas Min Pending Running Succeeded Failed Unknown RetryCount"
    )
    assert " ".join(list(seen.values())[2:]) == "Running Batch 3 3 1 2 0 0 0 1"
    assert site.name in shell("job list --all-namespaces")
    whole = shell.json("job list -A")
    (item,) = (i for i in whole["items"] if i["metadata"]["namespace"] == site.name)
    assert item == shell.json("job view a")
    assert (whole["kind"], item["kind"]) == ("List", "Job")
    assert shell("job list -o name") == "job.batch.volcano.sh/a\n"
    assert "queue other does not exist" in refusal(shell, "job list -q other -o name", code=3)
    columns = control_plane.kubectl("get", "vcjob", "-A").splitlines()[0].split()
    assert {"NAMESPACE", "NAME", "STATUS", "MINAVAILABLE", "RUNNINGS", "AGE"} <= set(columns)


def test_watch_ends_with_the_job(site: Site, shell: Shell) -> None:
    site.nodes(1)
    site.controllers()
    site.scheduler()
    path = site.file("job.json", json.dumps(manifest(site, "good")))
    assert shell(f"job run -f {path}") == "run job good successfully\n"
    await_phase(site, "good", "Running")
    good = shell.start("job watch -n good --timeout 180s")
    assert good.stdout is not None
    assert good.stdout.readline().split()[:2] == ["Name", "Phase"]
    assert good.stdout.readline().split()[:2] == ["good", "Running"]
    for pod in pods_of(site, "good"):
        site.end_pod(pod)
    rest, errors = good.communicate(timeout=180)
    assert (good.returncode, errors) == (0, "")
    assert rest.splitlines()[-1].split()[1] == "Completed"

    shell(f"job run -f {path} -N bad")
    await_phase(site, "bad", "Running")
    assert shell.ended("job watch bad --timeout 100ms")[0] == 7
    for pod in pods_of(site, "bad"):
        site.end_pod(pod, "optsched.io/fail")
    assert shell.ended("job watch bad --timeout 180s") == (1, "Error: job bad is Failed\n")
    assert shell.try_("job suspend bad").exit_code == 4


def test_a_wrong_file_makes_nothing_and_a_refused_one_is_told(site: Site, shell: Shell) -> None:
    wrong = manifest(site, "wrong")
    wrong["spec"]["tasks"][0]["replicas"] = "two"
    text = f"{json.dumps(manifest(site, 'right'))}\n---\n{json.dumps(wrong)}"
    path = site.file("jobs.json", text)
    result = shell.try_(f"job run -f {path}")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {path}:3: Job wrong: spec.tasks[0].replicas: ")
    assert shell.json("job list")["items"] == []
    assert shell.try_("job run -N Not_A_Name").exit_code == 1
    missing = shell.try_("job run -N a -n no-such-namespace")
    assert missing.exit_code == 3
    assert missing.stderr == "Error: namespace no-such-namespace does not exist\n"
    shell("job run -N a")
    assert shell.try_("job run -N a").exit_code == 4


def test_a_user_without_rights_is_told_by_every_command(
    site: Site, tmp_path: Path, control_plane: ControlPlane
) -> None:
    account = {"metadata": {"name": "eve"}}
    site.api.post(f"/api/v1/namespaces/{site.name}/serviceaccounts", account)
    token = control_plane.kubectl("create", "token", "eve", "-n", site.name).strip()
    config = json.loads(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    config["contexts"][0]["context"]["namespace"] = site.name
    path = site.file("eve.conf", json.dumps(config))
    for name, act in ACTS.items():
        result = run(act.line, tmp_path, env={"KUBECONFIG": str(path)})
        assert (result.exit_code, result.stdout) == (5, ""), (name, result.output)
        (told,) = result.stderr.splitlines()
        assert told.startswith("Error: "), name
        assert f'"system:serviceaccount:{site.name}:eve" cannot ' in told, name
    assert site.api.items(JOBS.format(site.name)) == []
    config["users"][0]["user"] = {"token": "of.yesterday"}
    path.write_text(json.dumps(config))
    for line in ("job list", "queue create new", "snapshot"):
        stranger = run(line, tmp_path, env={"KUBECONFIG": str(path)})
        assert stranger.exit_code == 5
        assert stranger.stderr == "Error: 401 Unauthorized: Unauthorized\n"


NOWHERE: Final = {
    "job run -f {Job} -n nowhere": 3,
    "job run new -n nowhere": 3,
    "vsub -n new -N nowhere": 3,
    "jobflow create -f {JobFlow} -n nowhere": 3,
    "jobtemplate create -f {JobTemplate} -n nowhere": 3,
    "job list -n nowhere": 3,
    "job list -o wide -n nowhere": 3,
    "job list --position -n nowhere": 3,
    "vjobs -N nowhere": 3,
    "jobflow list -n nowhere": 3,
    "jobtemplate list -n nowhere": 3,
    "jobflow describe -n nowhere": 3,
    "pod list -n nowhere": 3,
    "pod list -q default -n nowhere": 3,
    "what-if -f {Job} -n nowhere": 9,
    **{f"job {verb} one -n nowhere": 3 for verb in ("view", "watch", "suspend", "resume")},
    **{f"job {verb} one -n nowhere": 3 for verb in ("delete", "explain")},
    **{f"{v} -n one -N nowhere": 3 for v in ("vjobs", "vcancel", "vsuspend", "vresume")},
    **{f"jobflow {verb} one -n nowhere": 3 for verb in ("get", "describe", "delete")},
}
"""Of each command that looks into a namespace, what it ends with where there is none."""


def test_a_namespace_that_does_not_exist_is_told_by_every_command(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    for line, code in NOWHERE.items():
        result = run(line, tmp_path, env={"KUBECONFIG": str(control_plane.kubeconfig)})
        assert result.exit_code == code, (line, result.output)
        if code == 3:
            assert "nowhere" in result.stderr, line
            assert "does not exist" in result.stderr, line
            assert (result.stdout, result.stderr.count("\n")) == ("", 1), line
        else:
            assert 'namespaces "nowhere" not found' in result.stdout, line
    for name in ("x" * 300, "töst-☃", "a b", "A.B_C"):
        for line in ("job run -N", "job view -N", "queue create -N", "queue delete -N"):
            result = CliRunner().invoke(
                main, [*line.split(), name], env={"KUBECONFIG": str(control_plane.kubeconfig)}
            )
            is_new = "run" in line or "create" in line
            assert result.exit_code == (1 if is_new else 3), (line, name, result.output)
            assert (result.stdout, result.stderr.count("\n")) == ("", 1), result.stderr
            assert name[:60] in result.stderr
            assert "regex" not in result.stderr
            assert not is_new or "use at most 253 lower-case letters" in result.stderr


@pytest.fixture
def webhook(control_plane: ControlPlane, api: Api, tmp_path: Path) -> Iterator[Webhook]:
    """Yield the webhook, which the API server already calls for queues."""
    make_namespace(api, SYSTEM)
    running = Webhook(control_plane.kubeconfig, tmp_path / "webhook.log", free_port())
    with registered(api):
        running.begin()
        yield running
    running.stop()


def test_what_the_webhook_refuses_is_told_in_its_words(
    site: Site, shell: Shell, webhook: Webhook
) -> None:
    def is_asked() -> bool:
        said = shell.try_(f"queue create {site.name}-probe --deserved cpu=1 --guarantee cpu=2")
        return "failed calling webhook" not in said.output

    until(is_asked, "the webhook is asked")
    closed, taken = f"{site.name}-closed", f"{site.name}-taken"
    for name, state in ((closed, "Closed"), (taken, "Open")):
        shell(f"queue create {name}")
        site.api.patch(f"{QUEUES}/{name}/status", {"status": {"state": state}})
    twice = manifest(site, "twice")
    twice["spec"]["queue"] = taken
    twice["spec"]["tasks"] *= 2
    file = site.file("twice.json", json.dumps(twice))
    flow = FLOWS.format(kind="JobFlow", spec="{flows: [{name: a, dependsOn: {targets: [a]}}]}")
    circle = site.file("circle.yaml", flow)
    more = "--deserved cpu=1 --guarantee cpu=2"
    told = 'spec.deserved[cpu]: Invalid value: "1": deserved[cpu]=1 must be >= guarantee[cpu]=2'
    try:
        for line, sentence in {
            f"queue create {taken}-1 {more}": told,
            f"queue create {taken}-1 --parent nobody": "there is no queue nobody",
            f"queue operate {taken} -a update {more}": told,
            "queue create Not_A_Name": "Not_A_Name",
            f"job run a -q {closed}": f"queue {closed} status is Closed",
            "job run a -q nobody": "unable to find job queue",
            f"job run a -q {taken} -r 1 -m 2": "spec.minAvailable is 2, the tasks have 1",
            f"job run -f {file}": "duplicated task name w",
            f"jobflow create -f {circle}": "jobflow flow is not dag: spec.flows: a waits for a",
        }.items():
            result = shell.try_(line)
            assert result.exit_code == 1, (line, result.output)
            assert result.stdout == ""
            assert result.stderr.startswith("Error: ")
            assert result.stderr.count("\n") == 1
            assert sentence in result.stderr
        shell(f"job run a -q {taken} -S {site.name}")
        assert shell.json("job view a")["spec"]["maxRetry"] == 3
    finally:
        for name in (closed, taken):
            site.api.delete(f"{QUEUES}/{name}")


def test_a_cluster_that_is_away_is_told(shell: Shell) -> None:
    assert shell.try_("queue list -s https://127.0.0.1:1").exit_code == 6
    assert shell.try_("queue list -k /no/such/file").exit_code == 6


# --- others --------------------------------------------------------------------------------------


def test_cromwell_submits_asks_and_kills(site: Site, shell: Shell) -> None:
    conf = (ROOT / "deploy" / "cromwell" / "backend.conf").read_text()
    said = dict(re.findall(r'^\s*([a-z-]+) = "(.*)"$', conf, re.M))
    script = site.file("script", json.dumps(manifest(site, "wf-1-call-a")))

    def line(name: str, **fields: str) -> str:
        text = said[name].removeprefix("vcctl ")
        for field, value in fields.items():
            text = text.replace(f"${{{field}}}", value)
        return text

    found = re.search(said["job-id-regex"], shell(line("submit", script=str(script))))
    assert found is not None
    assert found[1] == "wf-1-call-a"
    assert "wf-1-call-a" in shell(line("check-alive", job_id=found[1]))
    shell(line("kill", job_id=found[1]))
    until(
        lambda: shell.try_(line("check-alive", job_id=found[1])).exit_code == 3, "the job is gone"
    )


def test_the_old_commands_work(site: Site, shell: Shell) -> None:
    site.nodes(1)
    site.controllers()
    site.scheduler()
    ns = site.name
    assert shell(f"-n a -N {ns} -S {ns} -R cpu=1", legacy.vsub) == "run job a successfully\n"
    await_phase(site, "a", "Running")
    assert row(shell(f"-N {ns}", legacy.vjobs), "a")["Phase"] == "Running"
    assert shell(f"-N {ns} -n a", legacy.vjobs).startswith("Name:         a\n")
    await_row(lambda: row(shell("", legacy.vqueues), "default"), State="Open")
    shell(f"-N {ns} -n a", legacy.vsuspend)
    await_phase(site, "a", "Aborted")
    shell(f"-N {ns} -n a", legacy.vresume)
    await_phase(site, "a", "Running")
    assert shell(f"-N {ns} -n a", legacy.vcancel) == "cancel job a successfully\n"
    assert shell.try_(f"-N {ns} -n a", legacy.vcancel).exit_code in (0, 3)
    until(lambda: phase(site, "a") == "", "the job is gone")


FLOWS = """\
apiVersion: flow.volcano.sh/v1alpha1
kind: {kind}
metadata: {{name: one}}
spec: {spec}
"""


@pytest.mark.parametrize(
    ("word", "kind", "spec"),
    [
        ("jobflow", "JobFlow", "{flows: [{name: a}]}"),
        ("jobtemplate", "JobTemplate", "{tasks: [{name: a, replicas: 1, template: {}}]}"),
    ],
)
def test_flows_and_templates(site: Site, shell: Shell, word: str, kind: str, spec: str) -> None:
    path = site.file(f"{word}.yaml", FLOWS.format(kind=kind, spec=spec))
    assert shell(f"{word} create -f {path}") == f"Created {kind}: {site.name}/one\n"
    assert shell.try_(f"{word} create -f {path}").exit_code == 4
    assert row(shell(f"{word} list"), "one")["Namespace"] == site.name
    assert "one" in shell(f"{word} list -A")
    got, also = (
        row(shell(f"{word} get {flags}"), "one") for flags in ("-n one", f"-N one -n {site.name}")
    )
    assert got | {"Age": ""} == also | {"Age": ""}
    (described,) = values(shell(f"{word} describe -N one"))
    assert described == shell.json(f"{word} describe one")
    assert shell(f"{word} delete -n one") == f"Deleted {kind}: {site.name}/one\n"
    assert shell.try_(f"{word} get one").exit_code == 3


def test_pods_of_jobs_and_queues(site: Site, shell: Shell) -> None:
    site.nodes(1)
    marks = {"volcano.sh/job-name": "a", "volcano.sh/queue-name": "ml"}
    site.pod("a-0", labels=marks, nodeName=f"{site.name}-0")
    site.pod("web", annotations={"scheduling.volcano.sh/queue-name": "ml"})
    await_row(lambda: row(shell("pod list"), "a-0"), Status="Running")
    seen = row(shell("pod list -j a"), "a-0")
    assert " ".join(seen) == "Name Ready Status Restart Age"
    assert (seen["Ready"], seen["Restart"]) == ("1/1", "0")
    assert shell("pod list -q ml -o name").split() == ["pod/a-0", "pod/web"]
    assert site.name in shell("pod list -A -j a")


def install(name: str, folder: Path) -> None:
    """Create the script of a command as an installation does."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts[name].partition(":")
    path = folder / name
    program = f"from {module} import {function} as run; run(prog_name='{name}')"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}" "$@"\n')
    path.chmod(0o755)


def test_kubectl_finds_it_as_a_plugin(
    shell: Shell, control_plane: ControlPlane, tmp_path: Path
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("kubectl-vc", "kubectl_complete-vc"):
        install(name, folder)
    environment = {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "KUBECONFIG": str(shell.kubeconfig),
    }
    kubectl = str(control_plane.kubectl.binary)

    def call(*arguments: str) -> str:
        done = subprocess.run(
            [kubectl, *arguments], env=environment, text=True, capture_output=True, check=True
        )
        return done.stdout

    assert call("vc", "job", "run", "-N", "a") == "run job a successfully\n"
    assert row(call("vc", "job", "list"), "a")["Phase"] == "Pending"
    assert call("__complete", "vc", "job", "vi") == "view\n:4\n"
    assert call("__complete", "vc", "job", "view", "") == "a\n:4\n"
    assert call("vc", "job", "delete", "-n", "a") == "delete job a successfully\n"
