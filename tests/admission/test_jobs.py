# ruff: noqa: E501  sentences are kept whole
from __future__ import annotations

import json
from typing import Any

import pytest

from optsched.admission.job_rules import EVENTS
from optsched.admission.world import Settings
from optsched.api.job import JobAction
from tests.admission.kit import ask, container, job, made, patched, queue, task, template, world

OPEN = "open queues are default"
ECHO = (
    """echo '{"apiVersion":"scheduling.volcano.sh/v1beta1","kind":"Queue","""
    """"metadata":{"name":"compute"}}' | kubectl create -f -"""
)
DAG = "job has dependencies between tasks, but doesn't form a directed acyclic graph(DAG)"
TIERS = (
    "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology simultaneously"
)
TWO = {"highestTierAllowed": 1, "highestTierName": "rack"}
GPU = "nvidia.com/gpu"


def denied(obj: Any, *queues: Any) -> list[str]:
    return list(made("/jobs/mutate", obj, world(*queues)).problems)


def policy(**parts: Any) -> dict[str, Any]:
    return {"action": "RestartJob", **parts}


def pod(*containers: Any, **spec: Any) -> Any:
    return job(task(template=template(*containers, **spec)))


REFUSED = [
    pytest.param(
        job(task(minAvailable=3)),
        [
            "'minAvailable' is greater than 'replicas' in task: w, job: j: "
            "spec.tasks[0].minAvailable is 3, write at most 2",
            "job 'minAvailable' should not be greater than total replicas in tasks: "
            "spec.minAvailable is 3, the tasks have 2",
        ],
        id="task minAvailable above replicas",
    ),
    pytest.param(
        job(minAvailable=3),
        [
            "job 'minAvailable' should not be greater than total replicas in tasks: "
            "spec.minAvailable is 3, the tasks have 2"
        ],
        id="job minAvailable above replicas",
    ),
    pytest.param(
        job(task("a"), task("a")),
        ["duplicated task name a: spec.tasks[1].name; give each task a unique name"],
        id="task names twice",
    ),
    pytest.param(
        job(name="j_/"),
        [
            "create job with name j_/ validate failed: metadata.name; use at most 63 letters, "
            "digits, '-', '_' and '.', with a letter or digit at both ends"
        ],
        id="job name",
    ),
    pytest.param(
        job(task("w" * 40), name="j" * 30),
        [
            f"create pod with name {'j' * 30}-{'w' * 40}-1 validate failed: it has 73 characters; "
            "shorten metadata.name or spec.tasks[0].name until it has 63"
        ],
        id="pod name too long",
    ),
    pytest.param(
        job(task("A")),
        [
            'spec.tasks[0].name: Invalid value: "A": use at most 63 lower-case letters, digits and '
            "'-', with a letter or digit at both ends"
        ],
        id="task name",
    ),
    pytest.param(
        job(policies=[policy(event="PodFailed"), policy(event="PodFailed")]),
        [
            "duplicate event PodFailed  across different policy: spec.policies[1]; "
            "name it in one policy only"
        ],
        id="event twice",
    ),
    pytest.param(
        job(policies=[policy(event="Unknown"), policy(events=["JobUnknown"])]),
        [
            "duplicate event Unknown  across different policy: spec.policies[1]; "
            "name it in one policy only"
        ],
        id="event twice by its alias",
    ),
    pytest.param(
        job(task(policies=[policy(event="PodFailed", exitCode=1)])),
        [
            "must not specify event and exitCode simultaneously: spec.tasks[0].policies[0] has PodFailed and 1; keep one of them"
        ],
        id="event and exitCode",
    ),
    pytest.param(
        job(policies=[policy()]),
        ["either event and exitCode should be specified: spec.policies[0] has neither; write one"],
        id="neither event nor exitCode",
    ),
    pytest.param(
        job(policies=[policy(exitCode=0)]),
        [
            "0 is not a valid error code: spec.policies[0].exitCode; write the code of a failure, such as 1"
        ],
        id="exitCode 0",
    ),
    pytest.param(
        job(policies=[policy(exitCode=3), policy(exitCode=3)]),
        ["duplicate exitCode 3: spec.policies[1].exitCode; name it in one policy only"],
        id="exitCode twice",
    ),
    pytest.param(
        job(policies=[policy(event="*"), policy(event="PodFailed")]),
        [
            "if there's * here, no other policy should be here: spec.policies names *, PodFailed; keep * or the others"
        ],
        id="any event and another",
    ),
    pytest.param(
        job(policies=[policy(event="OutOfSync")]),
        [
            'spec.policies[0].event: Invalid value: "OutOfSync": invalid policy event: write one of '
            "*, PodPending, PodFailed, PodEvicted, Unknown, TaskCompleted, TaskFailed, JobUpdated"
        ],
        id="internal event",
    ),
    pytest.param(
        job(policies=[{"event": "PodFailed"}]),
        [
            "spec.policies[0].action: Required value: write one of AbortJob, RestartJob, RestartTask, "
            "RestartPod, RestartPartition, TerminateJob, CompleteJob, ResumeJob"
        ],
        id="no action",
    ),
    pytest.param(
        job(task(partitionPolicy={"totalPartitions": 2, "partitionSize": 2})),
        [
            "spec.tasks[0].partitionPolicy: totalPartitions 2 times partitionSize 2 is 4: "
            "it must be 2, the replicas of task w"
        ],
        id="partitions do not make replicas",
    ),
    pytest.param(
        job(
            task(
                replicas=4,
                minAvailable=4,
                partitionPolicy={"totalPartitions": 2, "partitionSize": 2, "minPartitions": 1},
            )
        ),
        [
            "spec.tasks[0].minAvailable: is 4: write 2, which is minPartitions 1 times "
            "partitionSize 2"
        ],
        id="partitions do not make minAvailable",
    ),
    pytest.param(
        job(
            task(partitionPolicy={"totalPartitions": 2, "partitionSize": 1, "networkTopology": TWO})
        ),
        [
            "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology simultaneously: spec.tasks[0].partitionPolicy.networkTopology has 1 and rack; keep one of them"
        ],
        id="two tiers of partitions",
    ),
    pytest.param(
        job(networkTopology=TWO),
        [
            "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology simultaneously: spec.networkTopology has 1 and rack; keep one of them"
        ],
        id="two tiers",
    ),
    pytest.param(
        job(task("a", dependsOn={"name": ["b"]}), task("b", dependsOn={"name": ["a"]})),
        [
            "job has dependencies between tasks, but doesn't form a directed acyclic graph(DAG): spec.tasks: a waits for b waits for a; remove one dependsOn"
        ],
        id="tasks wait in a circle",
    ),
    pytest.param(
        job(task("a", dependsOn={"name": ["c"]})),
        [f"{DAG}: spec.tasks[0].dependsOn.name names c; tasks are a"],
        id="tasks wait for nobody",
    ),
    pytest.param(
        job(plugins={"envs": [], "svc": []}),
        [
            "unable to find job plugin: envs: spec.plugins; known plugins: env, hcclrank, mpi, pytorch, "
            "ray, ssh, svc, tensorflow"
        ],
        id="unknown plugin",
    ),
    pytest.param(
        job(task("worker"), plugins={"mpi": ["--master=boss"]}),
        [
            "The specified mpi master task was not found: spec.plugins[mpi] looks for a task boss; tasks are worker; name one with --master"
        ],
        id="mpi without master",
    ),
    pytest.param(
        job(volumes=[{"mountPath": "", "volumeClaimName": "a"}]),
        ["mountPath is required: spec.volumes[0].mountPath; write the path to mount at"],
        id="volume without mountPath",
    ),
    pytest.param(
        job(volumes=[{"mountPath": "/a", "volumeClaimName": n} for n in ("x", "y")]),
        ["duplicated mountPath: /a: spec.volumes[1].mountPath; use it once"],
        id="mountPath twice",
    ),
    pytest.param(
        job(volumes=[{"mountPath": "/a"}]),
        [
            "either VolumeClaim or VolumeClaimName must be specified: spec.volumes[0] has neither; write one"
        ],
        id="neither claim nor name",
    ),
    pytest.param(
        job(volumes=[{"mountPath": "/a", "volumeClaimName": "x", "volumeClaim": {}}]),
        [
            "conflict: If you want to use an existing PVC, just specify VolumeClaimName.If you want to create a new PVC, you do not need to specify VolumeClaimName: spec.volumes[0] has a volumeClaim and the name x; keep one of them"
        ],
        id="claim and name",
    ),
    pytest.param(
        job(volumes=[{"mountPath": "/a", "volumeClaimName": "X"}]),
        [
            "invalid VolumeClaimName X: spec.volumes[0].volumeClaimName; use at most 253 lower-case "
            "letters, digits, '-' and '.', with a letter or digit at both ends"
        ],
        id="claim name",
    ),
    pytest.param(
        job(queue="compute"),
        [
            'unable to find job queue: queue.scheduling.volcano.sh "compute" not found: spec.queue; open queues are default, or create it: echo \'{"apiVersion":"scheduling.volcano.sh/v1beta1","kind":"Queue","metadata":{"name":"compute"}}\' | kubectl create -f -'
        ],
        id="queue is not there",
    ),
    pytest.param(
        job(queue="root"),
        ["cannot submit job to root queue: spec.queue; open queues are default"],
        id="queue is the root",
    ),
    pytest.param(
        job(
            task(
                topologyPolicy="restricted",
                template=template(
                    container(resources={"requests": {"cpu": "1500m"}}), container(name="d")
                ),
            )
        ),
        [
            "the cpu request isn't  an integer in spec.tasks[0].template.spec.containers[0]: it is 1500m; spec.tasks[0].topologyPolicy restricted needs whole CPUs, such as 2",
            "the cpu request isn't  an integer in spec.tasks[0].template.spec.containers[1]: it is none; spec.tasks[0].topologyPolicy restricted needs whole CPUs, such as 2",
        ],
        id="parts of cpus",
    ),
    pytest.param(
        job(minSuccess=0),
        ["spec.minSuccess: 0 is out of range: write 1 to 2147483647"],
        id="minSuccess",
    ),
    pytest.param(
        job(task(partitionPolicy={"totalPartitions": 0, "partitionSize": 2})),
        ["spec.tasks[0].partitionPolicy.totalPartitions: 0 is out of range: write 1 to 2147483647"],
        id="partition of nothing",
    ),
    pytest.param(
        job(
            task(
                topologyPolicy="best-effort",
                template=template(
                    container(resources={"limits": {"cpu": 2}}),
                    initContainers=[container(name="i", resources={"requests": {"cpu": "0.5"}})],
                ),
            )
        ),
        [
            "the cpu request isn't  an integer in spec.tasks[0].template.spec.initContainers[0]: it is 0.5; spec.tasks[0].topologyPolicy best-effort needs whole CPUs, such as 2"
        ],
        id="parts of cpus before it starts",
    ),
    pytest.param(
        job(task(replicas=-1)),
        ["spec.tasks[0].replicas: -1 is out of range: write 0 to 2147483647"],
        id="replicas",
    ),
    pytest.param(
        job(policies=[policy(event="PodFaild")]),
        [
            'spec.policies[0].event: "PodFaild" is not one of *, PodPending, PodRunning, PodFailed, PodEvicted, Unknown, JobUnknown, TaskCompleted, TaskFailed, OutOfSync, CommandIssued, JobUpdated'
        ],
        id="unknown event",
    ),
    pytest.param(
        job(policies=[policy(events=["PodFailed", "Nothing"])]),
        [
            'spec.policies[0].events[1]: "Nothing" is not one of *, PodPending, PodRunning, PodFailed, PodEvicted, Unknown, JobUnknown, TaskCompleted, TaskFailed, OutOfSync, CommandIssued, JobUpdated'
        ],
        id="unknown event in a list",
    ),
    pytest.param(
        job(policies=[{"event": "PodFailed", "action": "Restart"}]),
        [
            'spec.policies[0].action: "Restart" is not one of AbortJob, RestartJob, RestartTask, RestartPod, RestartPartition, TerminateJob, CompleteJob, ResumeJob'
        ],
        id="unknown action",
    ),
    pytest.param(
        job(policies=[{"event": "PodFailed", "action": "SyncJob"}]),
        [
            'spec.policies[0].action: "SyncJob" is not one of AbortJob, RestartJob, RestartTask, RestartPod, RestartPartition, TerminateJob, CompleteJob, ResumeJob'
        ],
        id="action of controllers",
    ),
    pytest.param(
        job(policies=[policy(exitCode="1")]),
        ['spec.policies[0].exitCode: "1" is not a whole number'],
        id="exitCode no number",
    ),
    pytest.param(
        job(policies=[policy(event="PodFailed", timeout="soon")]),
        [
            'spec.policies[0].timeout: "soon" is not a duration: write numbers with units ns, us, ms, s, m or h, such as 300ms or 1h30m'
        ],
        id="timeout",
    ),
    pytest.param(
        job(task(topologyPolicy="numa")),
        [
            'spec.tasks[0].topologyPolicy: "numa" is not one of none, best-effort, restricted, single-numa-node'
        ],
        id="topologyPolicy",
    ),
    pytest.param(
        job(networkTopology={"mode": "firm", "highestTierAllowed": 1}),
        ['spec.networkTopology.mode: "firm" is not one of hard, soft'],
        id="topology mode",
    ),
    pytest.param(
        job(ttlSecondsAfterFinished=-1),
        ["spec.ttlSecondsAfterFinished: -1 is out of range: write 0 to 2147483647"],
        id="ttl",
    ),
    pytest.param(
        job(plugins={"ssh": "x"}), ['spec.plugins[ssh]: "x" is not a list'], id="plugins no lists"
    ),
    pytest.param(
        job(task("a", dependsOn={"name": ["b"], "iteration": "some"}), task("b")),
        ['spec.tasks[0].dependsOn.iteration: "some" is not one of any, all'],
        id="dependsOn iteration",
    ),
    pytest.param(
        job() | {"spec": {"tasks": {}}}, ["spec.tasks: {} is not a list"], id="tasks no list"
    ),
    pytest.param(
        job() | {"spec": {"tasks": ["w"]}},
        [
            'spec.tasks[0]: "w" is not a mapping of field names to values',
            "spec.tasks[0].template.spec.containers: Required value",
        ],
        id="task no mapping",
    ),
    pytest.param(
        job(minAvailable="2"),
        ['spec.minAvailable: "2" is not a whole number'],
        id="minAvailable no number",
    ),
    pytest.param(
        job(minAvailable=-2),
        ["spec.minAvailable: -2 is out of range: write 0 to 2147483647"],
        id="minAvailable below zero",
    ),
    pytest.param(
        job(task(minAvailable=-2)),
        ["spec.tasks[0].minAvailable: -2 is out of range: write 0 to 2147483647"],
        id="task minAvailable below zero",
    ),
    pytest.param(job(maxRetry="x"), ['spec.maxRetry: "x" is not a whole number'], id="maxRetry"),
    pytest.param(
        job(plugins={"svc": [1]}),
        ["spec.plugins[svc][0]: 1 is not a string: write it in quotes"],
        id="unknown plugins argument",
    ),
    pytest.param(
        job(runningEstimate="soon"),
        [
            'spec.runningEstimate: "soon" is not a duration: write numbers with units ns, us, ms, s, m or h, such as 300ms or 1h30m'
        ],
        id="runningEstimate",
    ),
]


@pytest.mark.parametrize(("obj", "sentences"), REFUSED)
def test_a_job_that_could_never_run_is_refused_with_a_sentence(obj: Any, sentences: list[str]):
    assert denied(obj) == sentences


def test_a_job_without_tasks_is_refused():
    obj = job()
    del obj["spec"]["tasks"]
    assert denied(obj)[0] == "No task specified in job spec: spec.tasks; write at least one"


@pytest.mark.parametrize("state", ["Closed", "Closing", "Unknown"])
def test_a_queue_that_is_not_open_takes_no_jobs(state: str):
    assert denied(job(queue="q"), queue("q", state)) == [
        f"can only submit job to queue with state Open, queue q status is {state}: spec.queue; {OPEN}"
    ]


def test_a_queue_that_was_made_a_moment_ago_has_no_state_yet_and_takes_jobs():
    assert denied(job(queue="q"), queue("q", "")) == []


def test_only_leaves_take_jobs():
    parts = [queue(name, parent="dept") for name in ("team-b", "team-a")]
    assert denied(job(queue="dept"), queue("dept"), *parts) == [
        "can only submit job to leaf queue, queue dept has 2 child queues: "
        "spec.queue; name one of them: team-a, team-b"
    ]


def test_a_denial_names_the_objects_on_which_it_rests():
    response = made("/jobs/mutate", job(queue="compute"))
    assert [(rest.kind.kind, rest.name) for rest in response.rests_on] == [("Queue", "compute")]
    assert made("/jobs/mutate", job(minAvailable=9)).rests_on == ()
    assert made("/jobs/mutate", job()).rests_on == ()


LISTS = {
    "optsched.io/users": "ann, bob",
    "optsched.io/groups": "lab-a",
    "optsched.io/namespaces": "a-ns",
}


@pytest.mark.parametrize(
    ("user", "groups", "namespace", "may"),
    [
        ("bob", (), "ml", True),
        ("eve", ("lab-b", "lab-a"), "ml", True),
        ("eve", (), "a-ns", True),
        ("controllers", (), "a-ns", True),
        ("eve", ("lab-b",), "ml", False),
    ],
)
def test_the_lists_of_a_queue_say_who_may_use_it(
    user: str, groups: tuple[str, ...], namespace: str, may: bool
):
    obj = job(queue="lab-a")
    obj["metadata"]["namespace"] = namespace
    settings = Settings(trusted=frozenset({"controllers"}))
    around = world(queue("lab-a", annotations=LISTS))
    response = made(
        "/jobs/mutate", obj, around, settings=settings, user=user, groups=frozenset(groups)
    )
    sentence = (
        "user eve may not use queue lab-a from namespace ml: its annotations admit "
        "optsched.io/users: ann, bob; optsched.io/groups: lab-a; optsched.io/namespaces: a-ns"
    )
    assert response.problems == (() if may else (sentence,))


def test_everything_that_volcano_fills_in_is_filled_in():
    bare = {"replicas": 2, "template": template(hostNetwork=True)}
    obj = job(bare, task(minAvailable=1), maxRetry=0, plugins={"mpi": [], "pytorch": []})
    spec = patched(obj, ask("/jobs/mutate", obj))["spec"]
    first, second = spec["tasks"]
    assert (spec["queue"], spec["schedulerName"], spec["maxRetry"]) == ("default", "volcano", 3)
    assert spec["minAvailable"] == 3
    assert spec["plugins"] == {"mpi": [], "pytorch": [], "ssh": [], "svc": []}
    assert (first["name"], first["minAvailable"], first["maxRetry"]) == ("default0", 2, 3)
    assert first["template"]["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert (second["minAvailable"], second["maxRetry"]) == (1, 3)


@pytest.mark.parametrize(
    ("plugin", "others"),
    [
        ("tensorflow", ["svc"]),
        ("pytorch", ["svc"]),
        ("ray", ["svc"]),
        ("mpi", ["ssh", "svc"]),
        ("hcclrank", []),
        ("env", []),
    ],
)
def test_plugins_bring_those_that_they_need(plugin: str, others: list[str]):
    obj = job(plugins={plugin: ["--a=b"]})
    spec = patched(obj, ask("/jobs/mutate", obj))["spec"]
    assert spec["plugins"] == {plugin: ["--a=b"], **{name: [] for name in others}}


def test_the_first_scheduler_is_the_one_of_jobs_that_name_none():
    settings = Settings(scheduler_names=("ours", "theirs"))
    spec = patched(job(), ask("/jobs/mutate", job(), settings=settings))["spec"]
    assert spec["schedulerName"] == "ours"


@pytest.mark.parametrize("event", ["*", *(event.value for event in EVENTS)])
@pytest.mark.parametrize("action", list(JobAction))
def test_every_public_event_may_have_every_action(event: str, action: JobAction):
    policies = [{"event": event, "action": action.value, "timeout": "1m30s"}]
    assert denied(job(task(policies=policies), policies=policies)) == []
    assert denied(job(policies=[{"exitCode": -1, "action": action.value}])) == []


def test_what_the_user_wrote_is_left_alone():
    obj = job(
        task(minAvailable=1, maxRetry=-1),
        queue="q",
        schedulerName="s",
        maxRetry=1,
        minAvailable=1,
        plugins={"svc": ["--x"]},
    )
    assert ask("/jobs/mutate", obj).patch == ()


def test_partitions_set_the_minimum_of_a_task():
    policy = {"totalPartitions": 4, "partitionSize": 2, "minPartitions": 3}
    obj = job(task(replicas=8, partitionPolicy=policy))
    spec = patched(obj, ask("/jobs/mutate", obj))["spec"]
    assert (spec["minAvailable"], spec["tasks"][0]["minAvailable"]) == (6, 6)


def test_devices_in_requests_alone_are_copied_to_limits_with_a_warning():
    resources = {"requests": {"cpu": "1", GPU: 2}, "limits": {"cpu": "2"}}
    obj = pod(container(resources=resources), initContainers=[container(name="i")])
    response = ask("/jobs/mutate", obj)
    (found,) = patched(obj, response)["spec"]["tasks"][0]["template"]["spec"]["containers"]
    assert found["resources"]["limits"] == {"cpu": "2", GPU: 2}
    assert response.warnings == (
        "spec.tasks[0].template.spec.containers[0].resources.limits: nvidia.com/gpu was "
        "copied from requests, because Kubernetes requires devices in limits",
    )
    assert denied(obj) == []


def test_the_event_of_the_guides_becomes_the_one_of_the_api():
    obj = job(
        task(policies=[policy(events=["JobUnknown", "PodFailed", "Unknown"])]),
        policies=[policy(event="JobUnknown")],
    )
    spec = patched(obj, ask("/jobs/mutate", obj))["spec"]
    assert spec["policies"][0]["event"] == "Unknown"
    assert spec["tasks"][0]["policies"][0]["events"] == ["Unknown", "PodFailed"]


def test_an_mpi_job_of_a_master_alone_is_let_in_with_a_warning():
    response = made("/jobs/mutate", job(task("master", replicas=1), plugins={"mpi": []}))
    assert response.allowed
    assert response.warnings == (
        "The specified mpi worker task was not found: spec.plugins[mpi] looks for a task worker; "
        "tasks are master; name one with --worker",
    )


def test_a_priority_class_that_is_not_there_is_worth_a_warning():
    response = made("/jobs/mutate", job(priorityClassName="high"))
    assert response.problems == ()
    assert response.warnings == (
        "spec.priorityClassName: there is no PriorityClass high; pods cannot be created until it exists",
    )
    there = world(priority_classes=frozenset({"high"}))
    assert made("/jobs/mutate", job(priorityClassName="high"), there).warnings == ()


# --- changes --------------------------------------------------------------------------------------


FIXED = (
    "job updates may not change fields other than minAvailable, tasks[*].replicas under spec and "
    "PriorityClassName"
)


def stored(**spec: Any) -> Any:
    obj = job(task("a"), task("b"), **spec)
    return patched(obj, ask("/jobs/mutate", obj))


def changed(edit: Any, **spec: Any) -> list[str]:
    old, new = stored(**spec), stored(**spec)
    edit(new)
    return list(ask("/jobs/validate", new, world(queue("default", "Closed")), old).problems)


def test_metadata_of_a_job_may_always_change():
    assert changed(lambda new: new["metadata"].update(annotations={"a": "b"}), queue="gone") == []


@pytest.mark.parametrize(
    "spec", [{"tasks": []}, {"tasks": [{"replicas": "x"}]}, {"minAvailable": 99}, {}]
)
def test_metadata_may_change_also_where_the_job_would_not_be_taken_today(spec: Any):
    old = job() | {"spec": spec}
    new = {**old, "metadata": {**old["metadata"], "finalizers": ["example.com/a"]}}
    assert ask("/jobs/validate", new, old=old).problems == ()
    assert ask("/jobs/validate", {**new, "status": {"state": "x"}}, old=old).problems == ()


def test_a_job_may_be_scaled():
    def edit(new: Any) -> None:
        new["spec"].update(minAvailable=5, priorityClassName="high")
        new["spec"]["tasks"][0].update(replicas=9, minAvailable=2)

    assert changed(edit) == []


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda s: s.update(queue="q"), f'{FIXED}: spec.queue was "default", the update has "q"'),
        (lambda s: s.update(maxRetry=7), f"{FIXED}: spec.maxRetry was 3, the update has 7"),
        (
            lambda s: s.update(ttlSecondsAfterFinished=0),
            f"{FIXED}: spec.ttlSecondsAfterFinished was null, the update has 0",
        ),
        (
            lambda s: s["tasks"][1].update(name="c"),
            f'{FIXED}: spec.tasks[1].name was "b", the update has "c"',
        ),
        (
            lambda s: s["tasks"][0]["template"]["spec"]["containers"][0].update(image="other"),
            f'{FIXED}: spec.tasks[0].template.spec.containers[0].image was "i", the update has "other"',
        ),
        (
            lambda s: s.update(schedulerName="other"),
            f'{FIXED}: spec.schedulerName was "volcano", the update has "other"',
        ),
        (
            lambda s: s.update(policies=[policy(event="PodFailed")]),
            f"{FIXED}: spec.policies was null, the update has "
            '[{"action": "RestartJob", "event": "PodFailed"}]',
        ),
        (
            lambda s: s.update(plugins={"ssh": []}),
            f"{FIXED}: spec.plugins.ssh was null, the update has []",
        ),
        (
            lambda s: s["tasks"][0].update(minAvailable=3),
            "'minAvailable' is greater than 'replicas' in task: a, job: j: "
            "spec.tasks[0].minAvailable is 3, write at most 2",
        ),
        (
            lambda s: s["tasks"][0].update(replicas=-1),
            "spec.tasks[0].replicas: -1 is out of range: write 0 to 2147483647",
        ),
        (
            lambda s: s["tasks"].pop(),
            "job 'minAvailable' should not be greater than total replicas in tasks: "
            "spec.minAvailable is 4, the tasks have 2",
        ),
        (
            lambda s: s["tasks"].append(task("c")),
            "job updates may not add or remove tasks: spec.tasks had 2, the update has 3; create another job",
        ),
        (
            lambda s: s["tasks"][0].update(replicas=1),
            "job 'minAvailable' should not be greater than total replicas in tasks: "
            "spec.minAvailable is 4, the tasks have 3",
        ),
        (
            lambda s: s["tasks"][0].update(replicas="x"),
            'spec.tasks[0].replicas: "x" is not a whole number',
        ),
    ],
)
def test_what_may_not_change(edit: Any, sentence: str):
    assert sentence in changed(lambda new: edit(new["spec"]))


LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def applied(manifest: Any, *, before: Any = None) -> tuple[Any, list[str]]:
    """Return the job after a client-side apply of a manifest, and the reasons of a refusal.

    `before` is the manifest that was applied first, to an empty cluster.
    """
    first = manifest if before is None else before
    old = patched(first, ask("/jobs/mutate", first))
    old["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(first)}
    new = json.loads(json.dumps(old))
    # A merge patch replaces a list of the job by that of the manifest, and keeps omitted fields.
    new["spec"].update(manifest["spec"])
    text = json.dumps(manifest)
    new["metadata"]["annotations"] = {LAST_APPLIED: text}
    response = ask("/jobs/mutate", new, world(queue("default")), old)
    new = patched(new, response)
    found = ask("/jobs/validate", new, world(queue("default")), old)
    return new, [*response.problems, *found.problems]


def test_a_manifest_may_be_applied_again():
    devices = {"requests": {"nvidia.com/gpu": 1}}
    spec = {"containers": [container(resources=devices)], "hostNetwork": True}
    manifest = job(
        task(template={"spec": spec}),
        task("b", policies=[policy(event="JobUnknown")]),
        plugins={"pytorch": []},
    )
    new, problems = applied(manifest)
    assert problems == []
    assert new["spec"] == patched(manifest, ask("/jobs/mutate", manifest))["spec"]


@pytest.mark.parametrize("replicas", [1, 5])
def test_a_manifest_with_other_replicas_is_as_if_it_had_been_the_first(replicas: int):
    first, then = job(task("a", replicas=3)), job(task("a", replicas=replicas))
    new, problems = applied(then, before=first)
    assert problems == []
    assert new["spec"]["minAvailable"] == replicas
    assert new["spec"]["tasks"][0]["minAvailable"] == replicas


def test_a_minimum_that_the_manifest_names_stays():
    first = job(task("a", replicas=3), minAvailable=3)
    new, problems = applied(job(task("a", replicas=5), minAvailable=3), before=first)
    assert (new["spec"]["minAvailable"], problems) == (3, [])
    _, problems = applied(job(task("a", replicas=2), minAvailable=3), before=first)
    assert problems == [
        "job 'minAvailable' should not be greater than total replicas in tasks: "
        "spec.minAvailable is 3, the tasks have 2"
    ]


def test_who_scales_a_job_without_its_manifest_keeps_its_minimum():
    old = stored()
    new = json.loads(json.dumps(old))
    new["spec"]["tasks"][0]["replicas"] = 9
    assert ask("/jobs/mutate", new, old=old).patch == ()


@pytest.mark.parametrize("named", [False, True])
def test_server_side_apply_tells_which_fields_the_manifest_names(named: bool):
    old = stored()
    new = json.loads(json.dumps(old))
    for each in new["spec"]["tasks"]:
        each.update(replicas=1, minAvailable=1)
    fields = {"f:tasks": {}, **({"f:minAvailable": {}} if named else {})}
    entry = {"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:spec": fields}}
    new["metadata"]["managedFields"] = [entry]
    answers = [ask("/jobs/mutate", new, old=old, manager=name) for name in ("kubectl", "edit")]
    found = [patched(new, answer)["spec"]["minAvailable"] for answer in answers]
    assert found == [4 if named else 2, 4]


@pytest.mark.parametrize(
    ("manager", "minimum"), [("kubectl-client-side-apply", 2), ("kubectl-edit", 3)]
)
def test_a_preview_of_an_apply_is_as_the_apply(manager: str, minimum: int):
    """`kubectl diff` sends a merged job with the annotation of the last `kubectl apply`."""
    first = job(task("a", replicas=3))
    old = patched(first, ask("/jobs/mutate", first))
    old["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(first)}
    new = json.loads(json.dumps(old))
    new["spec"].update(job(task("a", replicas=2))["spec"])
    answer = ask("/jobs/mutate", new, world(queue("default")), old, manager=manager)
    assert patched(new, answer)["spec"]["minAvailable"] == minimum


def test_claims_that_were_made_for_volumes_keep_their_names():
    made = {"mountPath": "/a", "volumeClaim": {}}
    old = stored(volumes=[{**made, "volumeClaimName": "j-pvc-x"}])
    new = json.loads(json.dumps(old))
    new["spec"]["volumes"] = [made]
    spec = patched(new, ask("/jobs/mutate", new, old=old))["spec"]
    assert spec["volumes"] == old["spec"]["volumes"]


def test_a_go_client_that_spells_the_same_differently_changes_nothing():
    resources = {"requests": {"cpu": "1000m", "memory": "1024Mi"}}
    spec = {"containers": [container(resources=resources)], "hostNetwork": False}
    old = job(
        task(template={"spec": spec, "metadata": {}}),
        runningEstimate="120m",
        volumes=[{"mountPath": "/a", "volumeClaim": {}}],
    )
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": None}
    spec = {"containers": [container(resources=resources, command=[])]}
    new = job(
        task(template={"spec": spec, "metadata": {"creationTimestamp": None}}),
        runningEstimate="2h0m0s",
        volumes=[{"mountPath": "/a", "volumeClaim": {}, "volumeClaimName": "j-pvc-x"}],
        plugins={},
    )
    assert ask("/jobs/validate", new, old=old).problems == ()


def test_a_zero_that_go_can_tell_from_nothing_is_a_change():
    old, new = stored(), stored()
    new["spec"]["tasks"][0]["template"]["spec"]["enableServiceLinks"] = False
    (problem,) = ask("/jobs/validate", new, old=old).problems
    assert problem.endswith("enableServiceLinks was null, the update has false")
