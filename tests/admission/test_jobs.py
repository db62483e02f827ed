# ruff: noqa: E501  sentences are kept whole
from __future__ import annotations

from typing import Any

import pytest

from optsched.admission.world import Settings
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
    (
        job(task(minAvailable=3)),
        [
            "'minAvailable' is greater than 'replicas' in task: w, job: j: "
            "spec.tasks[0].minAvailable is 3, write at most 2",
            "job 'minAvailable' should not be greater than total replicas in tasks: "
            "spec.minAvailable is 3, the tasks have 2",
        ],
    ),
    (
        job(minAvailable=3),
        [
            "job 'minAvailable' should not be greater than total replicas in tasks: "
            "spec.minAvailable is 3, the tasks have 2"
        ],
    ),
    (
        job(task("a"), task("a")),
        ["duplicated task name a: spec.tasks[1].name; give each task a name of its own"],
    ),
    (
        job(name="j_/"),
        [
            "create job with name j_/ validate failed: metadata.name; write a name of at most 63 "
            "letters, digits, '-', '_' and '.', with a letter or digit at both ends, after an optional "
            "DNS name and '/', such as example.com/my-name"
        ],
    ),
    (
        job(task("w" * 40), name="j" * 30),
        [
            f"create pod with name {'j' * 30}-{'w' * 40}-1 validate failed: it has 73 characters; "
            "shorten metadata.name or spec.tasks[0].name until it has 63"
        ],
    ),
    (
        job(task("A")),
        [
            'spec.tasks[0].name: Invalid value: "A": write at most 63 lower-case letters, digits and '
            "'-', with a letter or digit at both ends"
        ],
    ),
    (
        job(policies=[policy(event="PodFailed"), policy(event="PodFailed")]),
        [
            "duplicate event PodFailed  across different policy: spec.policies[1]; "
            "name it in one policy only"
        ],
    ),
    (
        job(policies=[policy(event="Unknown"), policy(events=["JobUnknown"])]),
        [
            "duplicate event Unknown  across different policy: spec.policies[1]; "
            "name it in one policy only"
        ],
    ),
    (
        job(task(policies=[policy(event="PodFailed", exitCode=1)])),
        [
            "must not specify event and exitCode simultaneously: spec.tasks[0].policies[0]; "
            "keep one of them"
        ],
    ),
    (
        job(policies=[policy()]),
        ["either event and exitCode should be specified: spec.policies[0]; write one"],
    ),
    (
        job(policies=[policy(exitCode=0)]),
        ["0 is not a valid error code: spec.policies[0].exitCode; write that of a failure"],
    ),
    (
        job(policies=[policy(exitCode=3), policy(exitCode=3)]),
        ["duplicate exitCode 3: spec.policies[1].exitCode; name it in one policy only"],
    ),
    (
        job(policies=[policy(event="*"), policy(event="PodFailed")]),
        ["if there's * here, no other policy should be here: spec.policies; keep * or the others"],
    ),
    (
        job(policies=[policy(event="OutOfSync")]),
        [
            'spec.policies[0].event: Invalid value: "OutOfSync": invalid policy event: write one of '
            "*, PodPending, PodFailed, PodEvicted, Unknown, TaskCompleted, TaskFailed, JobUpdated"
        ],
    ),
    (
        job(policies=[{"event": "PodFailed"}]),
        [
            "spec.policies[0].action: Required value: write one of AbortJob, RestartJob, RestartTask, "
            "RestartPod, RestartPartition, TerminateJob, CompleteJob, ResumeJob"
        ],
    ),
    (
        job(task(partitionPolicy={"totalPartitions": 2, "partitionSize": 2})),
        [
            "spec.tasks[0].partitionPolicy: totalPartitions 2 times partitionSize 2 is 4: "
            "make it the 2 replicas of task w"
        ],
    ),
    (
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
    ),
    (
        job(
            task(partitionPolicy={"totalPartitions": 2, "partitionSize": 1, "networkTopology": TWO})
        ),
        [f"{TIERS}: spec.tasks[0].partitionPolicy.networkTopology; keep one of them"],
    ),
    (job(networkTopology=TWO), [f"{TIERS}: spec.networkTopology; keep one of them"]),
    (
        job(task("a", dependsOn={"name": ["b"]}), task("b", dependsOn={"name": ["a"]})),
        [f"{DAG}: a waits for b waits for a"],
    ),
    (
        job(task("a", dependsOn={"name": ["c"]})),
        [f"{DAG}: spec.tasks[0].dependsOn.name names c; tasks are a"],
    ),
    (
        job(plugins={"envs": [], "svc": []}),
        [
            "unable to find job plugin: envs: spec.plugins; known are env, hcclrank, mpi, pytorch, "
            "ray, ssh, svc, tensorflow"
        ],
    ),
    (
        job(task("worker"), plugins={"mpi": ["--master=boss"]}),
        [
            "The specified mpi master task was not found: plugin mpi looks for a task boss; "
            "tasks are worker"
        ],
    ),
    (
        job(task("master"), plugins={"mpi": ["--worker", "hand"]}),
        [
            "The specified mpi worker task was not found: plugin mpi looks for a task hand; "
            "tasks are master"
        ],
    ),
    (
        job(volumes=[{"mountPath": "", "volumeClaimName": "a"}]),
        ["mountPath is required: spec.volumes[0].mountPath"],
    ),
    (
        job(volumes=[{"mountPath": "/a", "volumeClaimName": n} for n in ("x", "y")]),
        ["duplicated mountPath: /a: spec.volumes[1].mountPath; use it once"],
    ),
    (
        job(volumes=[{"mountPath": "/a"}]),
        ["either VolumeClaim or VolumeClaimName must be specified: spec.volumes[0]"],
    ),
    (
        job(volumes=[{"mountPath": "/a", "volumeClaimName": "x", "volumeClaim": {}}]),
        [
            "conflict: If you want to use an existing PVC, just specify VolumeClaimName.If you want to "
            "create a new PVC, you do not need to specify VolumeClaimName: spec.volumes[0]"
        ],
    ),
    (
        job(volumes=[{"mountPath": "/a", "volumeClaimName": "X"}]),
        [
            "invalid VolumeClaimName X: spec.volumes[0].volumeClaimName; write at most 253 lower-case "
            "letters, digits, '-' and '.', with a letter or digit at both ends"
        ],
    ),
    (
        job(queue="compute"),
        [
            'unable to find job queue: queue.scheduling.volcano.sh "compute" not found: '
            f"{OPEN}, or make it: {ECHO}"
        ],
    ),
    (job(queue="root"), [f"can not submit job to root queue: {OPEN}"]),
    (
        job(
            task(
                topologyPolicy="restricted",
                template=template(
                    container(resources={"requests": {"cpu": "1500m"}}), container(name="d")
                ),
            )
        ),
        [
            f"the cpu request isn't  an integer in spec.tasks[0].template.spec.containers[{i}]: "
            "spec.tasks[0].topologyPolicy restricted needs whole CPUs"
            for i in (0, 1)
        ],
    ),
    (job(minSuccess=0), ["spec.minSuccess: 0 is out of range: write 1 to 2147483647"]),
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
        f"can only submit job to queue with state Open, queue q status is {state}: {OPEN}"
    ]


def test_a_queue_that_was_made_a_moment_ago_has_no_state_yet_and_takes_jobs():
    assert denied(job(queue="q"), queue("q", "")) == []


def test_only_leaves_take_jobs():
    parts = [queue(name, parent="dept") for name in ("team-b", "team-a")]
    assert denied(job(queue="dept"), queue("dept"), *parts) == [
        "can only submit job to leaf queue, queue dept has 2 child queues: "
        "name one of them: team-a, team-b"
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
        ("controllers", (), "ml", True),
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
        "user eve may not use queue lab-a from namespace ml: its annotations let in "
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
        "spec.tasks[0].template.spec.containers[0].resources.limits: nvidia.com/gpu was only in "
        "requests; Kubernetes wants devices in limits, so it was copied",
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


def test_a_priority_class_that_is_not_there_is_worth_a_warning():
    response = made("/jobs/mutate", job(priorityClassName="high"))
    assert response.problems == ()
    assert response.warnings == (
        "spec.priorityClassName: there is no PriorityClass high; pods cannot be made until there is",
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


def test_a_job_may_be_scaled():
    def edit(new: Any) -> None:
        new["spec"].update(minAvailable=5, priorityClassName="high")
        new["spec"]["tasks"][0].update(replicas=9, minAvailable=2)

    assert changed(edit) == []


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda s: s.update(queue="q"), f'{FIXED}: spec.queue was "default", "q" is new'),
        (lambda s: s.update(maxRetry=7), f"{FIXED}: spec.maxRetry was 3, 7 is new"),
        (
            lambda s: s.update(ttlSecondsAfterFinished=0),
            f"{FIXED}: spec.ttlSecondsAfterFinished was null, 0 is new",
        ),
        (
            lambda s: s["tasks"][1].update(name="c"),
            f'{FIXED}: spec.tasks[1].name was "b", "c" is new',
        ),
        (
            lambda s: s["tasks"][0]["template"]["spec"]["containers"][0].update(image="other"),
            f'{FIXED}: spec.tasks[0].template.spec.containers[0].image was "i", "other" is new',
        ),
        (
            lambda s: s["tasks"].pop(),
            "job 'minAvailable' should not be greater than total replicas in tasks: "
            "spec.minAvailable is 4, the tasks have 2",
        ),
        (
            lambda s: s["tasks"].append(task("c")),
            "job updates may not add or remove tasks: spec.tasks; make another job",
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
    assert problem.endswith("enableServiceLinks was null, false is new")
