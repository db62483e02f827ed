"""Tests of the requests, output and exit codes of `optsched job`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.kinds import COMMAND, JOB, NAMESPACE, POD_GROUP, Ref
from optsched.kube.client.errors import Forbidden, NotFound, Rejected, Unreachable
from tests.cli.clusters import CONTEXT, FakeCluster, answer, job, optsched, queue

if TYPE_CHECKING:
    from pathlib import Path

HEADINGS = (
    "Name Creation Phase JobType Replicas Min Pending Running Succeeded Failed Unknown RetryCount"
)
FILE = """\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata:
  name: wordcount
spec:
  minAvailable: 1
  tasks:
    - name: main
      replicas: 1
      template:
        spec:
          containers: [{name: main, image: busybox}]
"""


def rows(*arguments: object) -> list[list[str]]:
    result = optsched("job", *arguments)
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.stdout.splitlines()]


# --- list ----------------------------------------------------------------------------------------


def test_the_columns_are_those_of_vcctl(cluster: FakeCluster) -> None:
    counts = {"pending": 1, "running": 2, "succeeded": 3, "failed": 4, "unknown": 5}
    obj = job(phase="Running", minAvailable=3, retryCount=6, **counts)
    obj["metadata"]["labels"] = {"volcano.sh/job-type": "Tensorflow"}
    cluster.put(obj)
    headings, row = rows("list")
    assert headings == HEADINGS.split()
    assert " ".join(row) == "train 2025-06-15 Running Tensorflow 4 3 1 2 3 4 5 6"


def test_a_job_that_nobody_has_seen_is_pending(cluster: FakeCluster) -> None:
    cluster.put(job())
    row = " ".join(rows("list")[1])
    assert row == "train 2025-06-15 Pending Batch 4 3 0 0 0 0 0 0"


def test_namespaces_of_the_context_of_a_flag_and_all(cluster: FakeCluster) -> None:
    cluster.put(job("mine"))
    cluster.put(job("other", "team-b"))
    assert [row[0] for row in rows("list")[1:]] == ["mine"]
    assert [row[0] for row in rows("list", "-n", "team-b")[1:]] == ["other"]
    for flag in ("-A", "--all-namespaces"):
        headings, *found = rows("list", flag)
        assert headings == ["Namespace", *HEADINGS.split()]
        assert [row[:2] for row in found] == [[CONTEXT, "mine"], ["team-b", "other"]]


def test_jobs_are_chosen_by_queue_scheduler_name_and_labels(cluster: FakeCluster) -> None:
    a, b = job("train-a"), job("train-b")
    a["spec"]["queue"], b["spec"]["schedulerName"] = "ml", "mine"
    a["metadata"]["labels"] = {"team": "vision"}
    for obj in (a, b):
        cluster.put(obj)
    for flags, names in {
        ("-q", "ml"): ["train-a"],
        ("-S", "mine"): ["train-b"],
        ("--scheduler", "volcano"): ["train-a"],
        ("--selector", "n-b"): ["train-b"],
        ("-l", "team=vision"): ["train-a"],
        ("-q", "none"): [],
    }.items():
        assert optsched("job", "list", *flags, "-o", "name").stdout.split() == [
            f"job.batch.volcano.sh/{name}" for name in names
        ]


def test_the_queue_of_a_job_is_that_of_its_podgroup(cluster: FakeCluster) -> None:
    """Admission may have put the PodGroup into the queue of the namespace."""
    one, two = job("one"), job("two")
    del two["spec"]["queue"]
    for obj in (one, two):
        cluster.put(obj)
    uid = cluster.objects[Ref(JOB, CONTEXT, "one")]["metadata"]["uid"]
    where = {"name": f"one-{uid}", "namespace": CONTEXT}
    head = {"apiVersion": POD_GROUP.api_version, "kind": POD_GROUP.kind, "metadata": where}
    cluster.put({**head, "spec": {"queue": "team"}})
    found = {
        queue: optsched("job", "list", "-q", queue, "-o", "name").stdout.split()
        for queue in ("team", "default")
    }
    name = "job.batch.volcano.sh/"
    assert found == {"team": [f"{name}one"], "default": [f"{name}two"]}
    headings, row, other = rows("list", "-o", "wide")
    at = headings.index("Queue")
    assert (row[at], other[at]) == ("team", "default")


@pytest.mark.parametrize("kind", ["job", "pod"])
def test_a_list_of_a_queue_that_does_not_exist_ends_with_3(cluster: FakeCluster, kind: str) -> None:
    cluster.put(queue("empty"))
    cluster.put(job("one"))
    result = optsched(kind, "list", "-q", "nosuch")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "Error: queue nosuch does not exist\n"
    result = optsched(kind, "list", "-q", "empty")
    assert (result.exit_code, result.stderr) == (0, "No resources found\n")


def test_a_deleted_queue_has_its_jobs_still(cluster: FakeCluster) -> None:
    one = job("one")
    cluster.put({**one, "spec": {**one["spec"], "queue": "deleted"}})
    result = optsched("job", "list", "-q", "deleted", "-o", "name")
    assert (result.exit_code, result.stdout) == (0, "job.batch.volcano.sh/one\n")
    assert optsched("job", "list", "-q", "deleted", "--position").exit_code == 0
    assert optsched("job", "list", "-q", "nosuch", "--position").exit_code == 3


def test_pods_of_a_job_that_does_not_exist_are_no_empty_list(cluster: FakeCluster) -> None:
    cluster.put(job("waits"))
    result = optsched("pod", "list", "-j", "nosuch")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == f"Error: job nosuch does not exist in namespace {CONTEXT}\n"
    assert optsched("pod", "list", "-j", "waits").stderr == "No resources found\n"
    assert optsched("pod", "list", "-j", "nosuch", "-A").exit_code == 0


def test_wide_says_why(cluster: FakeCluster) -> None:
    state = {"phase": "Pending", "reason": "NotEnough", "message": "too few GPUs"}
    cluster.put(job(state=state, runningDuration="1h30m"))
    headings, row = optsched("job", "list", "-o", "wide").stdout.splitlines()
    assert row[headings.index("Message") :] == "too few GPUs"
    assert row[headings.index("Reason") :].split()[0] == "NotEnough"
    assert row[headings.index("Duration") :].split()[0] == "1h30m0s"


# --- run -----------------------------------------------------------------------------------------


def test_run_makes_the_job_of_vcctl(cluster: FakeCluster) -> None:
    result = optsched("job", "run", "-N", "a", "-r", "3", "-m", "2", "-R", "cpu=2,nvidia.com/gpu=1")
    assert (result.exit_code, result.stdout) == (0, "run job a successfully\n")
    made = cluster.one(JOB)
    amounts = {"cpu": "2", "nvidia.com/gpu": "1"}
    assert made["metadata"]["namespace"] == CONTEXT
    assert made["spec"] == {
        "schedulerName": "volcano",
        "minAvailable": 2,
        "tasks": [
            {
                "replicas": 3,
                "template": {
                    "metadata": {"name": "a", "labels": {"job.volcano.sh": "a"}},
                    "spec": {
                        "restartPolicy": "Never",
                        "containers": [
                            {
                                "name": "a",
                                "image": "busybox",
                                "imagePullPolicy": "IfNotPresent",
                                "resources": {"requests": amounts, "limits": amounts},
                            }
                        ],
                    },
                },
            }
        ],
    }


def test_run_says_what_vcctl_can_not(cluster: FakeCluster) -> None:
    flags = ("-q", "ml", "-c", "sh -c 'sleep 1'", "--priority-class", "high", "-L", "cpu=4")
    made = answer(optsched("job", "run", "a", "-n", "team-b", *flags, "-o", "json"))
    assert made["metadata"]["namespace"] == "team-b"
    assert (made["spec"]["queue"], made["spec"]["priorityClassName"]) == ("ml", "high")
    (container,) = made["spec"]["tasks"][0]["template"]["spec"]["containers"]
    assert container["command"] == ["sh", "-c", "sleep 1"]
    assert container["resources"]["limits"] == {"cpu": "4"}
    assert container["resources"]["requests"] == {"cpu": "1000m", "memory": "100Mi"}


def test_run_from_a_file(cluster: FakeCluster, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(FILE)
    result = optsched("job", "run", "-f", path)
    assert (result.exit_code, result.stdout) == (0, "run job wordcount successfully\n")
    assert cluster.one(JOB)["metadata"]["namespace"] == CONTEXT
    again = optsched("job", "run", "-f", path)
    assert again.exit_code == 4
    assert again.stderr == f"Error: job wordcount exists already in namespace {CONTEXT}\n"
    assert optsched("job", "run", "-f", path, "-N", "other", "-o", "name").stdout == (
        "job.batch.volcano.sh/other\n"
    )
    assert optsched("job", "run", "-f", "-", "-n", "b", input=FILE).exit_code == 0
    assert Ref(JOB, "b", "wordcount") in cluster.objects


def test_the_namespace_of_a_file_counts(cluster: FakeCluster, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(FILE.replace("name: wordcount", "name: wordcount\n  namespace: own"))
    assert optsched("job", "run", "-f", path).exit_code == 0
    assert cluster.one(JOB)["metadata"]["namespace"] == "own"
    result = optsched("job", "run", "-f", path, "-n", "other")
    assert result.exit_code == 2
    wanted = f"Error: {path}:1: metadata.namespace: own differs from -n other\n"
    assert result.stderr == wanted


def test_what_is_wrong_in_a_file_is_told_before_anything_is_made(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.yaml"
    broken = FILE.replace("replicas: 1", "replicas: -1").replace("minAvailable: 1", "maxRetry: x")
    path.write_text(f"{FILE}---\n{broken}---\nkind: Pod\n---\n{{")
    result = optsched("job", "run", "-f", path)
    assert result.exit_code == 2
    assert result.stderr.removeprefix("Error: ").splitlines() == [
        f'{path}:19: Job wordcount: spec.maxRetry: "x" is not a whole number',
        f"{path}:22: Job wordcount: spec.tasks[0].replicas: -1 is out of range: write 0 to"
        " 2147483647",
        f'{path}:27: kind: "Pod" is not expected here: write Job',
        f"{path}:30:1: is not YAML: while parsing a flow node, did not find expected node content",
    ]
    assert cluster.writes == []


def test_a_misspelt_field_is_a_warning(cluster: FakeCluster, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(FILE.replace("minAvailable", "minAvailible"))
    result = optsched("job", "run", "-f", path)
    assert result.exit_code == 0
    assert result.stderr.startswith(
        f"Warning: {path}:6: Job wordcount: spec.minAvailible: 1 is the value of an unknown"
    )
    assert "did you mean minAvailable?" in result.stderr
    assert cluster.one(JOB)["metadata"]["name"] == "wordcount"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "a name is missing: write it after the command, or give -f FILE"),
        (("a", "-N", "b"), "two names are given: a and b"),
        (("a", "-c", "sh 'x"), '--command: "sh \'x": a quote is not closed'),
        (("a", "-R", "cpu=much"), 'cpu: "much" is not a quantity'),
        (("a", "-r", "-1"), "-1 is not in the range 0<=x<=2147483647"),
        (("-f", "missing.yaml"), "missing.yaml: there is no such file"),
    ],
)
def test_wrong_usage_ends_with_2(
    cluster: FakeCluster, arguments: tuple[str, ...], sentence: str
) -> None:
    result = optsched("job", "run", *arguments)
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())
    assert cluster.writes == []


def test_a_name_for_several_jobs_of_a_file_is_refused(tmp_path: Path, cluster: FakeCluster) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(f"{FILE}---\n{FILE}")
    result = optsched("job", "run", "-f", path, "-N", "one")
    assert result.exit_code == 2
    assert "holds 2 jobs, which cannot all be named one" in " ".join(result.stderr.split())
    assert cluster.writes == []


def test_a_dot_in_the_name_of_a_job_is_none_in_that_of_its_container(cluster: FakeCluster) -> None:
    assert optsched("job", "run", "v1.2").exit_code == 0
    made = cluster.one(JOB)
    [container] = made["spec"]["tasks"][0]["template"]["spec"]["containers"]
    assert (made["metadata"]["name"], container["name"]) == ("v1.2", "v1-2")


def test_a_refusal_and_a_missing_namespace_are_told(cluster: FakeCluster) -> None:
    cluster.refuse("create", Rejected(422, "Invalid", "spec.tasks: too many"))
    result = optsched("job", "run", "a")
    assert (result.exit_code, result.stderr) == (1, "Error: 422 Invalid: spec.tasks: too many\n")
    message = f'namespaces "{CONTEXT}" not found'
    cluster.refuse("create", NotFound(404, "NotFound", message))
    result = optsched("job", "run", "a")
    assert (result.exit_code, result.stderr) == (3, f"Error: namespace {CONTEXT} does not exist\n")
    assert NAMESPACE not in cluster.absent


# --- view ----------------------------------------------------------------------------------------


def event(name: str, **more: Any) -> dict[str, Any]:
    about = {"kind": "Job", "name": name, "uid": f"uid-{name}"}
    meta = {"name": f"{name}.{len(more)}{more['reason']}", "namespace": CONTEXT}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": meta,
        "involvedObject": about,
        "type": "Normal",
        "source": {"component": "vc-controller-manager"},
        **more,
    }


@pytest.mark.parametrize("spelt", [("train",), ("-N", "train"), ("-n", "train")])
def test_view_describes_a_job_and_its_events(cluster: FakeCluster, spelt: tuple[str, ...]) -> None:
    cluster.put(job(phase="Running", running=4))
    cluster.put(event("train", reason="Late", message="b\nc", lastTimestamp="2025-06-15T15:00:09Z"))
    cluster.put(event("train", reason="Early", message="a", count=3))
    cluster.put(event("other", reason="Else"))
    result = optsched("job", "view", *spelt)
    assert result.exit_code == 0
    text = result.stdout
    assert text.startswith(f"Name:         train\nNamespace:    {CONTEXT}\nLabels:       <none>\n")
    assert "\nStatus:\n  State:\n    Phase:  Running\n  Running:  4\n" in text
    assert "  Min Available:  3\n" in text
    table = [line.split() for line in text.partition("Events:\n")[2].splitlines()]
    assert [row[1] for row in table] == ["Reason", "Early", "Late"]
    assert "(x3" in table[1]
    assert table[2][-3:] == ["vc-controller-manager", "b", "c"]


def test_view_says_what_a_pending_job_waits_for(cluster: FakeCluster) -> None:
    condition = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources"}
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "train-uid-train", "namespace": CONTEXT},
        "status": {"conditions": [{**condition, "message": "room for 2 of 4"}]},
    }
    cluster.put(job(phase="Pending"))
    assert "Waits Because" not in optsched("job", "view", "train").stdout
    cluster.put(group)
    result = optsched("job", "view", "train")
    assert "\nWaits Because:  NotEnoughResources: room for 2 of 4\n" in result.stdout
    assert result.stdout.endswith("Events:  <none>\n")


def test_view_shows_what_is_allowed(cluster: FakeCluster) -> None:
    cluster.put(job(phase="Running"))
    cluster.refuse("list", Forbidden(403, "Forbidden", "events is forbidden"))
    result = optsched("job", "view", "train")
    assert result.exit_code == 0
    assert result.stdout.endswith("Events:  <none>\n")
    assert result.stderr == "the events are not shown: events is forbidden\n"


@pytest.mark.parametrize(
    ("kind", "where", "remark"),
    [
        (
            "events",
            ' in the namespace "team-a"',
            "reasons for missing pods are not shown: you may not list events in namespace team-a",
        ),
        (
            "events",
            " at the cluster scope",
            "reasons for missing pods are not shown: you may not list events",
        ),
    ],
)
def test_a_list_says_what_a_missing_right_hides(
    cluster: FakeCluster, kind: str, where: str, remark: str
) -> None:
    cluster.put(job(phase="Running"))
    user = 'User "system:serviceaccount:team-a:few"'
    message = f'{kind} is forbidden: {user} cannot list resource "{kind}" in API group ""{where}'
    cluster.refuse("list", None, Forbidden(403, "Forbidden", message))
    result = optsched("job", "list")
    assert (result.exit_code, "train" in result.stdout) == (0, True)
    assert result.stderr == f"{remark}\n"


def test_a_namespace_that_may_not_be_read_is_not_checked(cluster: FakeCluster) -> None:
    cannot = 'cannot get resource "namespaces" in API group "" in the namespace "other"'
    cluster.refuse("read", Forbidden(403, "Forbidden", f"namespaces is forbidden: {cannot}"))
    result = optsched("job", "list", "-n", "other")
    assert result.exit_code == 0
    unchecked, none = result.stderr.splitlines()
    assert unchecked == (
        "whether namespace other exists is not checked: you may not get namespace other"
    )
    assert none.startswith("No resources found")


def test_view_for_programs_is_the_object(cluster: FakeCluster) -> None:
    cluster.put(job(phase="Running"))
    seen = answer(optsched("job", "view", "-n", "train", "-o", "json"))
    assert (seen["kind"], seen["status"]) == ("Job", {"state": {"phase": "Running"}})
    assert cluster.calls == [f"read Job {CONTEXT}/train"]


@pytest.mark.parametrize("word", ["view", "suspend", "resume", "delete", "watch"])
def test_a_job_that_is_gone_is_not_found(cluster: FakeCluster, word: str) -> None:
    result = optsched("job", word, "-N", "train", "-n", "ml")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "Error: job train does not exist in namespace ml\n"
    assert cluster.writes == []


# --- suspend, resume, delete ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spelt", "namespace"),
    [
        (("-n", "train"), CONTEXT),
        (("train",), CONTEXT),
        (("-N", "train"), CONTEXT),
        (("-N", "train", "-n", "ml"), "ml"),
        (("train", "-n", "ml"), "ml"),
        (("train", "--namespace", "ml"), "ml"),
        (("-n", "train", "--namespace", "ml"), "ml"),
    ],
)
def test_suspend_and_resume_are_commands(
    cluster: FakeCluster, spelt: tuple[str, ...], namespace: str
) -> None:
    for word, action, phase in (
        ("suspend", "AbortJob", "Running"),
        ("resume", "ResumeJob", "Aborted"),
    ):
        cluster.put(job(namespace=namespace, phase=phase))
        result = optsched("job", word, *spelt)
        assert (result.exit_code, result.stdout) == (0, f"{word} job train successfully\n")
        made = cluster.objects.pop(next(ref for ref in cluster.objects if ref.kind == COMMAND))
        assert made["metadata"]["namespace"] == namespace
        assert made["action"] == action
        assert (made["target"]["kind"], made["target"]["uid"]) == ("Job", "uid-train")
        assert made["metadata"]["ownerReferences"] == [made["target"]]


@pytest.mark.parametrize(
    ("word", "phase"),
    [("suspend", "Aborted"), ("suspend", "Aborting"), ("resume", "Running"), ("resume", "Pending")],
)
def test_acts_without_effect_say_so(cluster: FakeCluster, word: str, phase: str) -> None:
    cluster.put(job(phase=phase))
    result = optsched("job", word, "train")
    assert (result.exit_code, result.stdout) == (0, f"job train is {phase} already\n")
    # An earlier Command with the opposite action may still exist.
    assert [ref.kind for ref in cluster.objects].count(COMMAND) == 1


@pytest.mark.parametrize(
    ("spelt", "sentence"),
    [
        ((), "a name is missing: write it after the command, or after -N"),
        (("--namespace", "ml"), "a name is missing"),
        (("a", "-N", "b"), "two names are given: a and b"),
        (("a", "-n", "x", "--namespace", "y"), "two namespaces are given: x and y"),
    ],
)
def test_what_is_meant_has_to_be_clear(
    cluster: FakeCluster, spelt: tuple[str, ...], sentence: str
) -> None:
    result = optsched("job", "suspend", *spelt)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert cluster.calls == []


@pytest.mark.parametrize("phase", ["Completed", "Failed", "Terminated"])
def test_what_has_ended_can_not_be_suspended(cluster: FakeCluster, phase: str) -> None:
    cluster.put(job(phase=phase))
    result = optsched("job", "suspend", "train")
    assert result.exit_code == 4
    assert result.stderr == f"Error: job train is {phase}: there is nothing to suspend\n"
    assert cluster.of(COMMAND) == []


@pytest.mark.parametrize("spelt", [("train",), ("-N", "train"), ("-n", "train")])
def test_delete_takes_a_job_away(cluster: FakeCluster, spelt: tuple[str, ...]) -> None:
    cluster.put(job())
    result = optsched("job", "delete", *spelt)
    assert (result.exit_code, result.stdout) == (0, "delete job train successfully\n")
    assert cluster.objects == {}


# --- watch ---------------------------------------------------------------------------------------


def changes(cluster: FakeCluster, *states: dict[str, Any]) -> None:
    """Add a job in its first state, and let a watch send its later states."""
    cluster.put(job(**states[0]))
    for version, state in enumerate(states[1:], 100):
        obj = job(**state)
        obj["metadata"]["resourceVersion"] = str(version)
        cluster.lines.append({"type": "MODIFIED", "object": obj})


@pytest.mark.parametrize(
    ("phase", "code"), [("Completed", 0), ("Failed", 1), ("Aborted", 1), ("Terminated", 1)]
)
def test_watch_shows_changes_until_the_end(cluster: FakeCluster, phase: str, code: int) -> None:
    running = {"phase": "Running", "running": 4}
    changes(cluster, {"phase": "Pending"}, running, running, {"phase": phase, "succeeded": 4})
    result = optsched("job", "watch", "-n", "train")
    assert result.exit_code == code
    assert [line.split()[1] for line in result.stdout.splitlines()] == [
        *("Phase", "Pending", "Running", phase)
    ]
    assert result.stderr == (f"Error: job train is {phase}\n" if code else "")


def test_watch_for_programs(cluster: FakeCluster) -> None:
    changes(cluster, {"phase": "Running"}, {"phase": "Completed"})
    lines = optsched("job", "watch", "train", "-o", "json").stdout.splitlines()
    assert [json.loads(line)["status"]["state"]["phase"] for line in lines] == [
        *("Running", "Completed")
    ]
    assert optsched("job", "watch", "train", "-o", "name").stdout == "job.batch.volcano.sh/train\n"


def test_watch_ends_with_the_job_or_in_time(cluster: FakeCluster) -> None:
    changes(cluster, {"phase": "Running"})
    late = optsched("job", "watch", "train", "--timeout", "50ms")
    assert (late.exit_code, late.stderr) == (
        7,
        "Error: job train did not end in time\n",
    )
    gone = {**job(), "metadata": {"name": "train", "resourceVersion": "7"}}
    cluster.lines.append({"type": "DELETED", "object": gone})
    result = optsched("job", "watch", "train")
    assert result.exit_code == 3
    assert result.stderr == "Error: job train was deleted while it was Running\n"


def test_watch_goes_on_when_the_server_is_away_for_a_moment(cluster: FakeCluster) -> None:
    changes(cluster, {"phase": "Completed"})
    cluster.refuse("list", Unreachable("GET /: refused"))
    result = optsched("job", "watch", "train")
    assert (result.exit_code, result.stderr) == (0, "GET /: refused; retrying\n")
    refused = optsched("job", "watch", "train", "--timeout", "soon")
    assert (refused.exit_code, '"soon" is not a duration' in refused.stderr) == (2, True)
