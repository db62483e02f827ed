# ruff: noqa: E501  sentences are kept whole
"""Tests of the admission of PodGroups, pods, HyperNodes, JobFlows, JobTemplates and CronJobs."""

from __future__ import annotations

from typing import Any

import pytest

from optsched.admission.resource_groups import parse_resource_groups
from optsched.admission.world import Settings
from tests.admission.kit import NAMESPACE, ask, job, patched, queue, task, world

QUEUE_KEY = "scheduling.volcano.sh/queue-name"
LOCKED = queue("lab", annotations={"optsched.io/users": "ann"})
MAY_NOT = (
    "user eve may not use queue lab from namespace ml: its annotations admit optsched.io/users: ann"
)
TIERS = (
    "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology simultaneously"
)
TWO = {"highestTierAllowed": 1, "highestTierName": "rack"}


def manifest(name: str = "x", annotations: Any = None, **spec: Any) -> Any:
    meta = {"name": name, "namespace": NAMESPACE, "annotations": annotations or {}}
    return {"metadata": meta, "spec": spec}


def denied(path: str, obj: Any, *queues: Any, **parts: Any) -> list[str]:
    return list(ask(path, obj, world(*queues), **parts).problems)


# --- PodGroups ------------------------------------------------------------------------------------


def group(**spec: Any) -> Any:
    return manifest("g", **spec)


@pytest.mark.parametrize(
    ("obj", "queue_name"),
    [
        (group(), "team"),
        (group(queue="default"), "team"),
        (group(queue="q"), "q"),
        ({"metadata": {"name": "g"}}, "team"),
    ],
)
def test_a_podgroup_without_a_queue_gets_that_of_its_namespace(obj: Any, queue_name: str):
    around = world(annotations_of={NAMESPACE: {QUEUE_KEY: "team"}})
    found = patched(obj, ask("/podgroups/mutate", obj, around))
    assert found["spec"]["queue"] == queue_name
    assert ask("/podgroups/mutate", obj).patch == ()


@pytest.mark.parametrize(
    ("was", "given", "queue_name"),
    [("team", "default", "team"), ("q", "default", "default"), ("team", "q", "q")],
)
def test_a_podgroup_that_is_applied_again_stays_in_the_queue_of_its_namespace(
    was: str, given: str, queue_name: str
):
    """`kubectl apply` sends the queue of the manifest again."""
    around = world(annotations_of={NAMESPACE: {QUEUE_KEY: "team"}})
    obj = group(queue=given)
    answer = ask("/podgroups/mutate", obj, around, old=group(queue=was))
    assert patched(obj, answer)["spec"]["queue"] == queue_name


@pytest.mark.parametrize(
    ("obj", "sentence"),
    [
        (
            group(queue="gone"),
            'unable to find queue: queue.scheduling.volcano.sh "gone" not found: spec.queue; open queues are '
            """default, lab, or create it: echo '{"apiVersion":"scheduling.volcano.sh/v1beta1","""
            """"kind":"Queue","metadata":{"name":"gone"}}' | kubectl create -f -""",
        ),
        (
            group(queue="shut"),
            "can only submit PodGroup to queue with state Open, queue shut status is Closed: "
            "spec.queue; open queues are default, lab",
        ),
        (group(queue="lab"), MAY_NOT),
        (
            group(networkTopology=TWO),
            f"{TIERS}: spec.networkTopology has 1 and rack; keep one of them",
        ),
        (
            group(subGroupPolicy=[{"name": "tp", "networkTopology": TWO}]),
            f"in subGroupPolicy 'tp': {TIERS}: spec.subGroupPolicy[0].networkTopology has 1 and rack; "
            "keep one of them",
        ),
        (group(minMember="3"), 'spec.minMember: "3" is not a whole number'),
    ],
)
def test_podgroups_that_are_refused(obj: Any, sentence: str):
    shut = queue("shut", "Closed")
    assert denied("/podgroups/validate", obj, shut, LOCKED, user="eve") == [sentence]


def test_a_podgroup_may_change_but_for_a_queue_that_would_not_have_taken_it():
    old = group(queue="gone", minMember=1)
    assert denied("/podgroups/validate", group(queue="gone", minMember=9), old=old) == []
    assert denied("/podgroups/validate", group(queue="lab"), LOCKED, old=old, user="eve") == [
        MAY_NOT
    ]


# --- pods -----------------------------------------------------------------------------------------


def pod(scheduler: str = "volcano", **annotations: str) -> Any:
    return manifest("p", annotations, schedulerName=scheduler, containers=[])


@pytest.mark.parametrize("key", ["volcano.sh/jdb-min-available", "volcano.sh/jdb-max-unavailable"])
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("1", ""),
        ("99%", ""),
        ("0", "it must be a positive integer"),
        ("-1", "it must be a positive integer"),
        ("many", "it must be a positive integer"),
        ("0%", "it must be a valid percentage which between 1% ~ 99%"),
        ("100%", "it must be a valid percentage which between 1% ~ 99%"),
        ("x%", "it must be a valid percentage which between 1% ~ 99%"),
    ],
)
def test_budgets_of_pods(key: str, value: str, problem: str):
    sentence = f'invalid value <"{value}"> for {key}, {problem}: metadata.annotations[{key}]'
    found = denied("/pods/validate", pod(**{key: value}))
    assert found == ([sentence] if problem else [])
    assert denied("/pods/validate", pod("default-scheduler", **{key: value})) == []


def test_one_budget_is_enough():
    keys = ("volcano.sh/jdb-min-available", "volcano.sh/jdb-max-unavailable")
    assert denied("/pods/validate", pod(**dict.fromkeys(keys, "1"))) == [
        "not allow configure multiple annotations <[volcano.sh/jdb-min-available "
        "volcano.sh/jdb-max-unavailable]> at same time: metadata.annotations; keep one of them"
    ]


def test_the_lists_of_a_queue_bind_bare_pods_too():
    bare = pod(**{QUEUE_KEY: "lab"})
    assert denied("/pods/validate", bare, LOCKED, user="eve") == [MAY_NOT]
    assert denied("/pods/validate", bare, LOCKED, user="ann") == []


GROUPS, _ = parse_resource_groups(
    {
        "resourceGroups": [
            {
                "resourceGroup": "management",
                "object": {"key": "namespace", "value": ["mng"]},
                "schedulerName": "default-scheduler",
                "tolerations": [{"key": "t", "operator": "Exists"}],
                "labels": {"nodetype": "management"},
                "affinity": '{"nodeAffinity": {}}',
            },
            {"resourceGroup": "gpu", "labels": {"nodetype": "gpu"}},
            {"object": {"key": "annotation", "value": ["tier: cpu"]}, "schedulerName": "cpus"},
        ]
    }
)


GATE = "scheduling.volcano.sh/queue-allocation-gate"


def gates_of(obj: dict[str, Any], *, are_on: bool = True) -> list[dict[str, Any]]:
    found = ask("/pods/mutate", obj, settings=Settings(gates_pods=are_on))
    return patched(obj, found)["spec"].get("schedulingGates", [])


def test_pods_that_ask_for_it_are_held_back_until_their_queue_has_room():
    obj = pod(**{GATE: "true"})
    assert gates_of(obj) == [{"name": GATE}]
    assert gates_of(obj, are_on=False) == []
    assert gates_of(pod(**{GATE: "false"})) == []
    assert gates_of(pod()) == []
    obj["spec"]["schedulingGates"] = [{"name": "x"}]
    assert gates_of(obj) == [{"name": "x"}, {"name": GATE}]
    obj["spec"]["schedulingGates"] = [{"name": GATE}]
    assert gates_of(obj) == [{"name": GATE}]


def test_nobody_holds_back_pods_of_other_schedulers():
    obj = pod(**{GATE: "true"})
    obj["spec"]["schedulerName"] = "default-scheduler"
    assert gates_of(obj) == []


def test_pods_of_no_group_pass_as_they_are():
    settings = Settings(resource_groups=GROUPS)
    assert ask("/pods/mutate", pod()).patch == ()
    assert (
        ask("/pods/mutate", pod(**{"volcano.sh/resource-group": "x"}), settings=settings).patch
        == ()
    )


def test_pods_get_what_their_resource_group_has_for_them():
    settings = Settings(resource_groups=GROUPS)
    obj = pod(**{"volcano.sh/resource-group": "gpu"})
    obj["metadata"]["namespace"] = "mng"
    obj["spec"] |= {"nodeSelector": {"a": "b", "nodetype": "x"}, "tolerations": [{"key": "s"}]}
    spec = patched(obj, ask("/pods/mutate", obj, settings=settings))["spec"]
    assert spec["nodeSelector"] == {"a": "b", "nodetype": "management"}
    assert spec["tolerations"] == [{"key": "s"}, {"key": "t", "operator": "Exists"}]
    assert (spec["schedulerName"], spec["affinity"]) == ("default-scheduler", {"nodeAffinity": {}})
    obj["metadata"]["namespace"] = "ml"
    obj["spec"]["affinity"] = {"podAffinity": {}}
    spec = patched(obj, ask("/pods/mutate", obj, settings=settings))["spec"]
    assert spec["nodeSelector"] == {"a": "b", "nodetype": "gpu"}
    assert (spec["schedulerName"], spec["affinity"]) == ("volcano", {"podAffinity": {}})
    named = pod(tier="cpu")
    spec = patched(named, ask("/pods/mutate", named, settings=settings))["spec"]
    assert spec["schedulerName"] == "cpus"


@pytest.mark.parametrize(
    ("group", "sentence"),
    [
        ({"affinity": "{"}, 'resourceGroups[0].affinity: "{" is not JSON: '),
        ({"affinity": "[]"}, 'resourceGroups[0].affinity: "[]" is not an affinity'),
        ({"tolerations": [1]}, "resourceGroups[0].tolerations[0]: 1 is not a toleration"),
        (
            {"object": {"key": "namespace"}},
            "resourceGroups[0].object.value: [] is empty: write at least one namespace",
        ),
    ],
)
def test_resource_groups_that_are_wrong(group: Any, sentence: str):
    _, errors = parse_resource_groups({"resourceGroups": [group]})
    assert str(errors[0]).startswith(sentence)


def test_without_resource_groups_there_are_none():
    assert parse_resource_groups(None) == ((), ())


# --- HyperNodes -----------------------------------------------------------------------------------


def member(**selector: Any) -> Any:
    return {"type": "Node", "selector": selector}


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"tier": 1, "members": []}, "spec.members: [] is missing: list at least one member"),
        (
            {"tier": 1, "members": [member(regexMatch={"pattern": "("})]},
            'spec.members[0].selector.regexMatch.pattern: "(" is not a regular expression: '
            "missing ): (; write one that Go reads (RE2): no look-around such as (?=a) and (?<!a), "
            r"no backreferences such as \1, no possessive or atomic parts such as a*+ and (?>a), "
            "and at most 1000 repetitions",
        ),
        (
            {"tier": 1, "members": [member()]},
            "spec.members[0].selector: {} selects no member: write exactMatch, regexMatch or labelMatch",
        ),
        (
            {"members": [member(exactMatch={"name": "n"})]},
            "spec.tier is missing and has no default",
        ),
    ],
)
def test_hypernodes_that_are_refused(spec: Any, sentence: str):
    obj = manifest("h", **spec)
    assert sentence in denied("/hypernodes/validate", obj)
    labelled = {**obj, "metadata": {**obj["metadata"], "labels": {"a": "b"}}}
    assert denied("/hypernodes/validate", labelled, old=obj) == []


# --- flows and templates --------------------------------------------------------------------------


def flow(name: str, *targets: str, **parts: Any) -> Any:
    return {"name": name, "dependsOn": {"targets": list(targets)}, **parts}


@pytest.mark.parametrize(
    ("flows", "sentence"),
    [
        (
            [flow("a", "b"), flow("b", "a")],
            "jobflow flow is not dag: spec.flows: a waits for b waits for a; remove one target",
        ),
        (
            [flow("a", "a")],
            "jobflow flow is not dag: spec.flows: a waits for a; remove one target",
        ),
        (
            [flow("a", "z")],
            "jobflow flow is not dag: spec.flows[0].dependsOn.targets[0]: there is no flow z; "
            "flows are a",
        ),
        (
            [flow("a", patch={"jobSpec": {"minAvailable": "3"}})],
            'spec.flows[0].patch.jobSpec.minAvailable: "3" is not a whole number',
        ),
        ([flow("a", patch={"jobSpec": {"queue": "lab"}})], MAY_NOT),
    ],
)
def test_flows_that_are_refused(flows: Any, sentence: str):
    obj = manifest("f", flows=flows)
    assert denied("/jobflows/validate", obj, LOCKED, user="eve") == [sentence]


def test_a_flow_may_be_named_twice_and_its_last_entry_counts():
    # Volcano uses a map by name, so it ignores the dependencies of an earlier entry.
    around = world(template_queues={(NAMESPACE, name): "default" for name in "ab"})
    flows = [flow("a", "b", "z"), flow("b", "a"), flow("a")]
    response = ask("/jobflows/validate", manifest("f", flows=flows), around)
    assert response.problems == ()
    assert response.warnings == (
        "duplicated flow name a: spec.flows[0].name; only one job is created, as soon as all "
        "targets of one of these flows are completed",
    )
    twice = [flow("a"), flow("b", "a"), flow("a", "b")]
    assert denied("/jobflows/validate", manifest("f", flows=twice)) == [
        "jobflow flow is not dag: spec.flows: a waits for b waits for a; remove one target"
    ]


def test_a_dense_flow_is_looked_at_in_no_time():
    names = [f"j{i}" for i in range(200)]
    flows = [flow(name, *names[:i]) for i, name in enumerate(names)]
    assert denied("/jobflows/validate", manifest("f", flows=flows)) == []


def test_a_template_that_is_not_there_yet_is_worth_a_warning():
    around = world(template_queues={(NAMESPACE, "a"): "default"})
    response = ask("/jobflows/validate", manifest("f", flows=[flow("a"), flow("b", "a")]), around)
    assert response.problems == ()
    assert response.warnings == (
        "spec.flows[1].name: there is no JobTemplate b; the job waits for this template",
    )


def test_the_lists_of_a_queue_bind_flows_through_their_templates():
    around = world(LOCKED, template_queues={(NAMESPACE, "a"): "lab"})
    obj = manifest("f", flows=[flow("a")])
    assert ask("/jobflows/validate", obj, around, user="eve").problems == (MAY_NOT,)


def test_a_template_is_looked_at_like_a_job():
    obj = manifest("t", **job(task(minAvailable=3), queue="later")["spec"])
    response = ask("/jobtemplates/validate", obj)
    assert response.problems[0].startswith("'minAvailable' is greater than 'replicas' in task: w")
    assert response.warnings == (
        "spec.queue: there is no queue later; jobs can be created once it exists",
    )
    locked = manifest("t", **job(queue="lab")["spec"])
    assert denied("/jobtemplates/validate", locked, LOCKED, user="eve") == [MAY_NOT]


# --- timetables -----------------------------------------------------------------------------------


def cron(name: str = "c", inner: Any = None, **spec: Any) -> Any:
    template = {"spec": inner or job()["spec"]}
    return manifest(name, schedule="*/5 * * * *", jobTemplate=template) | {
        "spec": {"schedule": "*/5 * * * *", "jobTemplate": template, **spec}
    }


CRON_REFUSED = [
    pytest.param(
        cron(schedule=""),
        "schedule is required, but got empty: spec.schedule; write one such as */5 * * * *",
        id="no schedule",
    ),
    pytest.param(
        cron(schedule="TZ=UTC 0 * * * *"),
        "schedule should not contain TZ or CRON_TZ, TZ should only be set in the timeZone field: spec.schedule: TZ=UTC 0 * * * *; write the zone into spec.timeZone",
        id="zone in schedule",
    ),
    pytest.param(
        cron(schedule="61 * * * *"),
        'schedule is not a valid cron expression: spec.schedule: "61 * * * *" names no minute '
        "with '61': write 0 to 59, *, a list, a range or steps",
        id="schedule",
    ),
    pytest.param(
        cron(timeZone=""),
        "timeZone must be nil or non-empty string, got empty string: spec.timeZone; leave it out, or write one such as Asia/Shanghai",
        id="empty zone",
    ),
    pytest.param(
        cron(timeZone="Local"),
        "timeZone can't be Local, and must be defined in https://www.iana.org/time-zones: spec.timeZone: Local; write one such as Asia/Shanghai",
        id="local zone",
    ),
    pytest.param(
        cron(timeZone="Mars/Olympus"),
        "unknown timeZone: spec.timeZone: Mars/Olympus; write one such as Asia/Shanghai",
        id="unknown zone",
    ),
    pytest.param(
        cron("c" * 53),
        "cronJob name must be no more than 52 characters to accommodate job name suffix (max 63 total): metadata.name has 53; shorten it",
        id="long name",
    ),
    pytest.param(
        cron(inner=job(task(minAvailable=3), minAvailable=1)["spec"]),
        "'minAvailable' is greater than 'replicas' in task: w, job: c-0000000000: "
        "spec.jobTemplate.spec.tasks[0].minAvailable is 3, write at most 2",
        id="job inside",
    ),
    pytest.param(cron(inner=job(queue="lab")["spec"]), MAY_NOT, id="queue is not for its user"),
    pytest.param(
        cron(jobTemplate=None), "spec.jobTemplate is missing and has no default", id="no job"
    ),
]


@pytest.mark.parametrize(("obj", "sentence"), CRON_REFUSED)
def test_timetables_that_are_refused(obj: Any, sentence: str):
    settings = Settings(zones=frozenset({"Asia/Shanghai"}))
    found = denied("/cronjobs/validate", obj, LOCKED, settings=settings, user="eve")
    assert sentence in found
    if len(obj["metadata"]["name"]) == 1 and obj["spec"]["jobTemplate"]:
        assert len(found) == 1


def test_a_timetable_that_is_fine():
    settings = Settings(zones=frozenset({"Asia/Shanghai"}))
    response = ask(
        "/cronjobs/validate",
        cron(timeZone="Asia/Shanghai", inner=job(queue="q")["spec"]),
        settings=settings,
    )
    assert response.problems == ()
    assert response.warnings == (
        "spec.jobTemplate.spec.queue: there is no queue q; jobs can be created once it exists",
    )


# --- fields that cannot be read -------------------------------------------------------------------


UNREADABLE = [
    pytest.param(
        "/cronjobs/validate",
        cron("c/"),
        [
            "create job with name c/-0000000000 validate failed: metadata.name; use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
        ],
        id="name of a CronJob",
    ),
    pytest.param(
        "/cronjobs/validate",
        cron(concurrencyPolicy="Sometimes"),
        ['spec.concurrencyPolicy: "Sometimes" is not one of Allow, Forbid, Replace'],
        id="concurrencyPolicy",
    ),
    pytest.param(
        "/cronjobs/validate",
        cron(successfulJobsHistoryLimit=-1),
        ["spec.successfulJobsHistoryLimit: -1 is out of range: write 0 to 2147483647"],
        id="history limit",
    ),
    pytest.param(
        "/cronjobs/validate",
        cron(startingDeadlineSeconds="x"),
        ['spec.startingDeadlineSeconds: "x" is not a whole number'],
        id="deadline no number",
    ),
    pytest.param(
        "/cronjobs/validate",
        cron(suspend="yes"),
        ['spec.suspend: "yes" is not a boolean: write true or false'],
        id="suspend",
    ),
    pytest.param(
        "/cronjobs/validate",
        cron(startingDeadlineSeconds=-1),
        ["spec.startingDeadlineSeconds: -1 is out of range: write 0 to 9223372036854775807"],
        id="deadline below zero",
    ),
    pytest.param(
        "/jobflows/validate",
        manifest("f", flows=[{}]),
        ["spec.flows[0].name is missing and has no default"],
        id="name of a flow",
    ),
    pytest.param(
        "/jobflows/validate",
        manifest("f", flows=[flow("a")], jobRetainPolicy="keep"),
        ['spec.jobRetainPolicy: "keep" is not one of retain, delete'],
        id="jobRetainPolicy",
    ),
    pytest.param(
        "/jobflows/validate",
        manifest("f", flows={}),
        ["spec.flows: {} is not a list"],
        id="flows no list",
    ),
    pytest.param(
        "/jobflows/validate",
        manifest(
            "f",
            flows=[
                flow("a"),
                {
                    "name": "b",
                    "dependsOn": {
                        "targets": ["a"],
                        "probe": {"httpGetList": [{"taskName": "t", "port": "x"}]},
                    },
                },
            ],
        ),
        ['spec.flows[1].dependsOn.probe.httpGetList[0].port: "x" is not a whole number'],
        id="port of a probe",
    ),
    pytest.param(
        "/hypernodes/validate",
        manifest(
            "h", tier=1, members=[{"type": "Rack", "selector": {"exactMatch": {"name": "a"}}}]
        ),
        ['spec.members[0].type: "Rack" is not one of Node, HyperNode'],
        id="type of a member",
    ),
    pytest.param(
        "/hypernodes/validate",
        manifest(
            "h",
            tier=1,
            members=[
                {
                    "type": "Node",
                    "selector": {"exactMatch": {"name": "a"}, "regexMatch": {"pattern": "a"}},
                }
            ],
        ),
        [
            'spec.members[0].selector: {"exactMatch": {"name": "a"}, "regexMatch": {"pattern": "a"}… has more than one of exactMatch, regexMatch and labelMatch: keep one'
        ],
        id="two selectors",
    ),
    pytest.param(
        "/hypernodes/validate",
        manifest(
            "h",
            tier=1,
            members=[
                {"type": "HyperNode", "selector": {"labelMatch": {"matchLabels": {"a": "b"}}}}
            ],
        ),
        [
            'spec.members[0].selector: {"labelMatch": {"matchLabels": {"a": "b"}}} selects nodes only: name a member HyperNode by exactMatch'
        ],
        id="labels of HyperNodes",
    ),
    pytest.param(
        "/hypernodes/validate",
        manifest("h", tier=-1, members=[member(exactMatch={"name": "n"})]),
        ["spec.tier: -1 is out of range: write 0 to 2147483647"],
        id="tier",
    ),
    pytest.param(
        "/podgroups/validate",
        group(minMember=-1),
        ["spec.minMember: -1 is out of range: write 0 to 2147483647"],
        id="minMember",
    ),
    pytest.param(
        "/podgroups/validate",
        group(minResources={"cpu": "x"}),
        [
            'spec.minResources[cpu]: "x" is not a quantity: write a number with an optional suffix, such as 500m, 2, 1.5Gi or 1e3'
        ],
        id="minResources",
    ),
    pytest.param(
        "/podgroups/validate",
        group(minTaskMember={"a": "x"}),
        ['spec.minTaskMember[a]: "x" is not a whole number'],
        id="minTaskMember",
    ),
    pytest.param(
        "/podgroups/validate",
        group(priorityClassName=5),
        ["spec.priorityClassName: 5 is not a string: write it in quotes"],
        id="priorityClassName",
    ),
    pytest.param(
        "/podgroups/validate",
        group(networkTopology={"mode": "firm"}),
        ['spec.networkTopology.mode: "firm" is not one of hard, soft'],
        id="mode of a topology",
    ),
    pytest.param(
        "/jobtemplates/validate",
        manifest("t"),
        ["No task specified in job spec: spec.tasks; write at least one"],
        id="template without tasks",
    ),
    pytest.param(
        "/jobtemplates/validate",
        manifest("t", **job(task("A"), policies=[{"event": "x"}])["spec"]),
        [
            'spec.policies[0].event: "x" is not one of *, PodPending, PodRunning, PodFailed, PodEvicted, Unknown, JobUnknown, TaskCompleted, TaskFailed, OutOfSync, CommandIssued, JobUpdated',
            "spec.tasks[0].name: Invalid value: \"A\": use at most 63 lower-case letters, digits and '-', with a letter or digit at both ends",
            "spec.policies[0].action: Required value: write one of AbortJob, RestartJob, RestartTask, RestartPod, RestartPartition, TerminateJob, CompleteJob, ResumeJob",
        ],
        id="template",
    ),
]


@pytest.mark.parametrize(("path", "obj", "sentences"), UNREADABLE)
def test_fields_that_hold_what_they_may_not(path: str, obj: Any, sentences: list[str]):
    assert denied(path, obj, LOCKED, user="eve") == sentences
