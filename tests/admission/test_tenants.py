"""Attempts of a tenant to use a queue of other users, and the result of each attempt."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from optsched.admission.review import AccessQuestion, ObjectQuestion, PodsQuestion
from optsched.admission.world import Settings
from optsched.api.kinds import POD, POD_GROUP, QUEUE, SCHEDULING_POD_GROUPS, Ref
from optsched.api.wellknown import (
    SUBMITTER,
    Subject,
    format_joined,
    format_submitters,
    parse_joined,
    parse_submitters,
)
from tests.admission.kit import NAMESPACE, StaticWorld, ask, job, patched, queue, task, world

QUEUE_KEY = "scheduling.volcano.sh/queue-name"
GROUP_KEY = "scheduling.k8s.io/group-name"
CONTROLLER = "system:serviceaccount:volcano-system:optsched-controllers"
REPLICA_SETS = "system:serviceaccount:kube-system:replicaset-controller"
SETTINGS = Settings(trusted=frozenset({CONTROLLER}))
RBAC = Settings(trusted=frozenset({CONTROLLER}), checks_use=True)
ANN, EVE = Subject("ann", frozenset({"lab"})), Subject("eve", frozenset({"other"}))
LAB = world(queue("lab", annotations={"optsched.io/users": "ann"}), queue("other"))
OPEN = world(queue("lab"), queue("other"))
MAY_NOT = (
    f"user eve may not use queue lab from namespace {NAMESPACE}: its annotations admit "
    "optsched.io/users: ann"
)
UNKNOWN = (
    "an unknown submitter (no annotation optsched.io/submitter: submit again) may not use "
    f"queue lab from namespace {NAMESPACE}: its annotations admit optsched.io/users: ann"
)

Raw = dict[str, Any]


def meta(name: str, *records: Subject, **annotations: str) -> Raw:
    marks = {SUBMITTER: format_submitters(records)} if records else {}
    return {"name": name, "namespace": NAMESPACE, "annotations": {**marks, **annotations}}


def pod(*records: Subject, name: str = "p", **annotations: str) -> Raw:
    return {"metadata": meta(name, *records, **annotations), "spec": {"schedulerName": "volcano"}}


def group(*records: Subject, queue: str = "lab", **spec: Any) -> Raw:
    return {"metadata": meta("g", *records), "spec": {"queue": queue, **spec}}


def vcjob(*records: Subject, replicas: int = 2) -> Raw:
    return {**job(task(replicas=replicas), queue="lab"), "metadata": meta("j", *records)}


def by(subject: Subject, path: str, obj: Raw, around: StaticWorld = LAB, **parts: Any) -> Any:
    settings = parts.pop("settings", SETTINGS)
    who = {"user": subject.user, "groups": subject.groups}
    return ask(path, obj, around, settings=settings, **who, **parts)


def by_controller(path: str, obj: Raw, around: StaticWorld = LAB, **parts: Any) -> Any:
    return by(Subject(CONTROLLER), path, obj, around, **parts)


def recorded(path: str, obj: Raw, subject: Subject, old: Raw | None = None) -> Any:
    """Return the submitters' record of an object as it is stored."""
    stored = patched(obj, by(subject, path, obj, old=old))
    return parse_submitters(stored["metadata"]["annotations"].get(SUBMITTER))


def is_group(at: str) -> ObjectQuestion:
    return ObjectQuestion(Ref(POD_GROUP, NAMESPACE, at))


# --- the record -----------------------------------------------------------------------------------

RECORDED = [
    ("/jobs/mutate", vcjob()),
    ("/podgroups/mutate", group()),
    ("/pods/mutate", pod()),
    ("/cronjobs/mutate", {"metadata": meta("c"), "spec": {"schedule": "* * * * *"}}),
    ("/jobflows/mutate", {"metadata": meta("f"), "spec": {"flows": []}}),
    ("/jobtemplates/mutate", {"metadata": meta("t"), "spec": {}}),
    ("/schedulinggroups/mutate", {"metadata": meta("u"), "spec": {}}),
]
CRON_JOB = ("batch.volcano.sh/v1alpha1", "CronJob")
JOB_FLOW = ("flow.volcano.sh/v1alpha1", "JobFlow")


@pytest.mark.parametrize(("path", "obj"), RECORDED, ids=lambda each: str(each)[:20])
def test_who_submits_is_recorded_and_nobody_can_forge_it(path: str, obj: Raw):
    assert recorded(path, obj, ANN) == (ANN,)
    forged = deepcopy(obj)
    forged["metadata"]["annotations"][SUBMITTER] = format_submitters([ANN])
    assert recorded(path, forged, EVE) == (EVE,)
    bare = deepcopy(obj)
    del bare["metadata"]["annotations"]
    assert recorded(path, bare, EVE) == (EVE,)


@pytest.mark.parametrize(("path", "obj"), [each for each in RECORDED if "pods" not in each[0]])
def test_the_record_stays_unless_the_work_changes(path: str, obj: Raw):
    old = deepcopy(obj)
    old["metadata"]["annotations"] = {SUBMITTER: format_submitters([ANN])}
    relabelled, forged, other = deepcopy(old), deepcopy(old), deepcopy(old)
    relabelled["metadata"]["labels"] = {"a": "b"}
    forged["metadata"]["annotations"] = {SUBMITTER: format_submitters([EVE])}
    other["spec"]["minAvailable"] = 1
    removed = {**old, "metadata": meta("x")}
    assert recorded(path, relabelled, EVE, old) == (ANN,)
    assert recorded(path, forged, EVE, old) == (ANN,)
    assert recorded(path, removed, EVE, old) == (ANN,)
    assert recorded(path, other, EVE, old) == (EVE,)


@pytest.mark.parametrize(("path", "obj"), [each for each in RECORDED if "pods" not in each[0]])
def test_who_labels_an_object_without_a_record_is_not_its_submitter(path: str, obj: Raw):
    """An object that is older than the webhook has no submitter until its workload changes.

    An administrator who labels the CronJob of a tenant would otherwise submit its jobs.
    """
    relabelled, forged, other = deepcopy(obj), deepcopy(obj), deepcopy(obj)
    relabelled["metadata"]["labels"] = {"a": "b"}
    forged["metadata"]["annotations"] = {SUBMITTER: format_submitters([ANN])}
    other["spec"]["minAvailable"] = 1
    assert recorded(path, relabelled, ANN, obj) == ()
    assert recorded(path, forged, EVE, obj) == (EVE,)
    assert recorded(path, other, EVE, obj) == (EVE,)


def test_a_pod_that_kubernetes_makes_counts_as_its_service_account():
    stored = pod()
    stored["spec"]["serviceAccountName"] = "runner"
    (found,) = recorded("/pods/mutate", stored, Subject(REPLICA_SETS))
    assert found.user == f"system:serviceaccount:{NAMESPACE}:runner"
    assert f"system:serviceaccounts:{NAMESPACE}" in found.groups


def test_a_pod_keeps_its_record():
    old = pod(ANN)
    assert by(EVE, "/pods/validate", pod(EVE), old=old).problems == (
        "metadata.annotations[optsched.io/submitter]: Forbidden: only admission may write it",
    )


@pytest.mark.parametrize(
    "text", ["", "{", "7", "[]", '{"user":""}', '{"user":"a"}', '[{"user":"a","groups":[]},7]']
)
def test_a_record_without_a_reading_names_no_one(text: str):
    assert parse_submitters(text) == ()


def test_a_record_reads_as_it_was_written():
    assert parse_submitters(format_submitters([EVE, ANN, EVE])) == (ANN, EVE)
    assert json.loads(format_submitters([ANN])) == {"user": "ann", "groups": ["lab"]}


# --- six ways round the lists of a queue ----------------------------------------------------------


def test_a_pod_can_not_name_the_queue_later():
    named = pod(EVE, **{QUEUE_KEY: "lab"})
    assert by(EVE, "/pods/validate", named, old=pod(EVE)).problems == (MAY_NOT,)
    assert by(EVE, "/pods/validate", pod(EVE, **{QUEUE_KEY: "other"}), old=pod(EVE)).allowed
    # The PodGroup that controllers create or move for eve's pod is reviewed as a PodGroup of eve.
    assert by_controller("/podgroups/validate", group(EVE)).problems == (MAY_NOT,)
    moved = by_controller("/podgroups/validate", group(EVE), old=group(EVE, queue="other"))
    assert MAY_NOT in moved.problems
    assert by_controller("/podgroups/validate", group(ANN)).allowed


@pytest.mark.parametrize(
    "name", ["podgroup-some-uid", "j-0f8fad5b-d9cb-469f-a165-70867728950e", "g"]
)
def test_a_pod_can_not_name_a_podgroup_that_controllers_will_make(name: str):
    named = pod(EVE, **{GROUP_KEY: name, QUEUE_KEY: "lab"})
    answers = {is_group(name): None}
    found = by(EVE, "/pods/validate", named, answers=answers).problems
    assert found[0] == MAY_NOT
    assert len(found) == (1 if name == "g" else 2)
    assert all("only controllers create PodGroups with a UID" in each for each in found[1:])


def test_work_made_before_the_queue_is_looked_at_when_it_comes():
    """CronJobs, JobTemplates and JobFlows pass their submitter to their jobs."""
    assert by_controller("/jobs/validate", vcjob(EVE)).problems == (MAY_NOT,)
    assert by_controller("/jobs/validate", vcjob(ANN, EVE)).problems == (MAY_NOT,)
    assert by_controller("/jobs/validate", vcjob()).problems == (UNKNOWN,)
    assert by_controller("/jobs/validate", vcjob(ANN)).allowed


def test_a_pod_can_not_join_the_podgroup_of_another_user():
    joining = pod(EVE, **{GROUP_KEY: "g"})
    answers = {is_group("g"): group(ANN)}
    assert by(EVE, "/pods/validate", joining).questions == (is_group("g"),)
    assert by(EVE, "/pods/validate", joining, answers=answers).problems == (MAY_NOT,)
    assert by(EVE, "/pods/validate", joining, old=pod(EVE), answers=answers).problems == (MAY_NOT,)
    assert by(ANN, "/pods/validate", joining, answers=answers).allowed
    # With a false owner, controllers would add eve's pod to the PodGroup, so it is reviewed.
    added = by_controller("/pods/validate", joining, old=pod(EVE), answers=answers)
    assert added.problems == (MAY_NOT,)


@pytest.mark.parametrize("old", [None, group(ANN, queue="other")], ids=["made", "moved"])
def test_a_podgroup_does_not_take_pods_of_others_into_the_queue(old: Raw | None):
    pods = PodsQuestion(NAMESPACE)
    found = (pod(EVE, name="early", **{GROUP_KEY: "g"}), pod(EVE, **{GROUP_KEY: "h"}), pod(EVE))
    assert by(ANN, "/podgroups/validate", group(), old=old).questions == (pods,)
    assert by(ANN, "/podgroups/validate", group(), old=old, answers={pods: found}).problems == (
        "pod early of user eve names this PodGroup, but may not use queue lab: delete the pod, or "
        "choose another name or queue",
    )
    assert by(ANN, "/podgroups/validate", group(), old=old, answers={pods: found[1:]}).allowed


def test_podgroups_of_kubernetes_are_in_queues_that_their_users_may_use():
    """The queue is an annotation, and pods name the PodGroup in their spec."""
    path, pods = "/schedulinggroups/validate", PodsQuestion(NAMESPACE)
    upstream = {"metadata": meta("u", **{QUEUE_KEY: "lab"}), "spec": {}}
    free = {"metadata": meta("u", **{QUEUE_KEY: "other"}), "spec": {}}
    early = pod(EVE, name="early")
    early["spec"]["schedulingGroup"] = {"podGroupName": "u"}
    for old in (None, free):
        alone, joined = {pods: ()}, {pods: (early,)}
        assert by(EVE, path, upstream, old=old, answers=alone).problems == (MAY_NOT,)
        assert by(ANN, path, upstream, old=old, answers=alone).allowed
        (found,) = by(ANN, path, upstream, old=old, answers=joined).problems
        assert "pod early of user eve names this PodGroup" in found
        others = {pods: (early, {**early, "metadata": meta("late", EVE)})}
        every = by(ANN, path, upstream, old=old, answers=others).problems
        assert [problem.split()[1] for problem in every] == ["early", "late"]
    assert by(EVE, path, free).allowed
    there = {ObjectQuestion(Ref(kind, NAMESPACE, "u")): None for kind in SCHEDULING_POD_GROUPS}
    there[ObjectQuestion(Ref(SCHEDULING_POD_GROUPS[1], NAMESPACE, "u"))] = upstream
    assert set(by(EVE, "/pods/validate", early).questions) == set(there)
    assert by(EVE, "/pods/validate", early, answers=there).problems == (MAY_NOT,)
    assert by(ANN, "/pods/validate", early, answers=there).allowed


def test_where_roles_count_the_record_of_a_pod_names_the_podgroup_that_it_is_let_into():
    """Only admission checks whether a role admits a user, and the scheduler reads the record."""

    def joined(obj: Raw, answers: Any, settings: Settings = RBAC) -> str | None:
        path = "/pods/mutate"
        stored = patched(obj, by(EVE, path, obj, settings=settings, answers=answers))
        text = stored["metadata"]["annotations"][SUBMITTER]
        assert parse_submitters(text) == (EVE,)
        return parse_joined(text)

    there = group(ANN)
    there["metadata"]["uid"] = "u"
    joining = pod(**{GROUP_KEY: "g"})
    assert by(EVE, "/pods/mutate", joining, settings=RBAC).questions == (is_group("g"),)
    assert joined(joining, {is_group("g"): there}) == format_joined("u", "lab")
    assert joined(joining, {is_group("g"): {**there, "spec": {}}}) == format_joined("u", "default")
    assert joined(joining, {is_group("g"): None}) == ""
    assert joined(joining, {is_group("g"): there}, SETTINGS) is None
    upstream = pod()
    upstream["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    older, newer = (ObjectQuestion(Ref(k, NAMESPACE, "g")) for k in SCHEDULING_POD_GROUPS[:2])
    found = {"metadata": {**meta("g", **{QUEUE_KEY: "lab"}), "uid": "u"}, "spec": {}}
    assert joined(upstream, {older: None, newer: found}) == format_joined("u", "lab")


@pytest.mark.parametrize("may", [True, False])
def test_where_roles_count_the_record_of_a_bare_pod_names_the_queue_that_lets_it_in(may: bool):
    """A scheduler starts a bare pod without a PodGroup only with this record."""

    def joined(obj: Raw, name: str, around: StaticWorld = OPEN) -> str | None:
        answers = {AccessQuestion(EVE, "use", QUEUE, name, NAMESPACE): may}
        response = by(EVE, "/pods/mutate", obj, around, settings=RBAC, answers=answers)
        assert not response.questions
        return parse_joined(patched(obj, response)["metadata"]["annotations"][SUBMITTER])

    of_lab = replace(OPEN, annotations_of={NAMESPACE: {QUEUE_KEY: "lab"}})
    assert joined(pod(**{QUEUE_KEY: "lab"}), "lab") == (format_joined("", "lab") if may else "")
    assert joined(pod(), "lab", of_lab) == (format_joined("", "lab") if may else "")
    assert joined(pod(), "default") == (format_joined("", "default") if may else "")
    assert joined(pod(**{QUEUE_KEY: "later"}), "later") == ""


def test_a_bare_pod_without_a_queue_is_reviewed_for_the_queue_that_it_gets():
    path, of_lab = "/pods/validate", replace(LAB, annotations_of={NAMESPACE: {QUEUE_KEY: "lab"}})
    assert by(EVE, path, pod(), of_lab).problems == (MAY_NOT,)
    assert by(ANN, path, pod(), of_lab).allowed
    assert by(EVE, path, pod(**{QUEUE_KEY: "other"}), of_lab).allowed
    assert by(EVE, path, pod(), LAB).allowed
    closed = world(queue("default", annotations={"optsched.io/users": "ann"}))
    assert "may not use queue default" in by(EVE, path, pod(), closed).problems[0]
    # An unrelated update is no new use of the queue, but a change of the queue is.
    assert by(EVE, path, pod(note="x"), of_lab, old=pod()).allowed
    assert by(EVE, path, pod(), of_lab, old=pod(**{QUEUE_KEY: "other"})).problems == (MAY_NOT,)


def test_a_pod_that_leaves_its_podgroup_is_reviewed_for_the_queue_that_it_enters():
    """Controllers created the pod from a job's template, whatever queue the template names."""
    path = "/pods/validate"
    inside = pod(**{GROUP_KEY: "g", QUEUE_KEY: "lab"})
    assert by(EVE, path, pod(**{QUEUE_KEY: "lab"}), old=inside).problems == (MAY_NOT,)
    assert by(ANN, path, pod(**{QUEUE_KEY: "lab"}), old=inside).allowed
    assert by(EVE, path, pod(**{QUEUE_KEY: "other"}), old=inside).allowed
    early = pod(**{GROUP_KEY: "g", QUEUE_KEY: "later"})
    (found,) = by(EVE, path, pod(**{QUEUE_KEY: "later"}), old=early).problems
    assert (
        "there is no queue later: a pod may leave its PodGroup only if its new queue exists"
        in found
    )
    upstream, left = pod(**{GROUP_KEY: "g"}), pod()
    for each in (upstream, left):
        each["spec"]["schedulingGroup"] = {"podGroupName": "u"}
    of_ann = {"metadata": meta("u", **{QUEUE_KEY: "lab"}), "spec": {}}
    there = {ObjectQuestion(Ref(k, NAMESPACE, "u")): None for k in SCHEDULING_POD_GROUPS}
    there[ObjectQuestion(Ref(SCHEDULING_POD_GROUPS[0], NAMESPACE, "u"))] = of_ann
    assert by(EVE, path, left, old=upstream, answers=there).problems == (MAY_NOT,)
    assert by(ANN, path, left, old=upstream, answers=there).allowed


def test_a_record_is_not_changed_while_every_queue_is_open():
    """A queue may get access lists later, and then the record decides."""
    (found,) = by(EVE, "/pods/validate", pod(ANN), OPEN, old=pod(EVE)).problems
    assert "only admission may write it" in found


def test_a_podgroup_of_kubernetes_does_not_grow_once_its_user_has_left_the_list():
    path, old = "/schedulinggroups/validate", {"metadata": meta("u", **{QUEUE_KEY: "lab"})}
    small, large = ({**old, "spec": {"minCount": number}} for number in (1, 2))
    assert by(EVE, path, large, old=small).problems == (MAY_NOT,)
    assert by(EVE, path, small, old=small).allowed
    assert by(ANN, path, large, old=small).allowed


def test_a_user_who_scales_down_the_job_of_another_does_not_become_its_submitter():
    path = "/jobs/mutate"
    stored = patched(vcjob(), by(ANN, path, vcjob()))
    for replicas, submitter in ((1, ANN), (3, EVE)):
        scaled = deepcopy(stored)
        scaled["spec"] |= {"minAvailable": 1}
        scaled["spec"]["tasks"][0] |= {"replicas": replicas, "minAvailable": 1}
        assert recorded(path, scaled, EVE, stored) == (submitter,)


@pytest.mark.parametrize(
    ("path", "obj", "owner"),
    [
        ("/pods/validate", pod(EVE), ("batch.volcano.sh/v1alpha1", "Job")),
        ("/jobs/validate", {**vcjob(EVE), "spec": job(queue="other")["spec"]}, CRON_JOB),
        ("/jobs/validate", {**vcjob(EVE), "spec": job(queue="other")["spec"]}, JOB_FLOW),
    ],
    ids=["pod", "cronjob", "jobflow"],
)
def test_a_tenant_does_not_add_work_to_what_controllers_count(
    path: str, obj: Raw, owner: tuple[str, str]
):
    def owned(owner: tuple[str, str]) -> Raw:
        named = {"apiVersion": owner[0], "kind": owner[1], "name": "o", "uid": "u"}
        return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [named]}}

    forged = owned(owner)
    for old in (None, obj):
        (found,) = by(EVE, path, forged, old=old, answers=TENANT).problems
        assert f"user eve may not name {owner[1]} o as owner" in found
        assert by(EVE, path, forged, old=old, answers=ADMINISTRATOR).allowed
    assert by_controller(path, forged).allowed
    assert by(EVE, path, forged, old=forged, answers=TENANT).allowed
    assert by(EVE, path, obj, old=forged, answers=TENANT).allowed
    for other in (("batch/v1", owner[1]), (owner[0], "Workflow")):
        assert by(EVE, path, owned(other), answers=TENANT).allowed
        # The UID was written together with another kind, whose name a later update corrects.
        assert not by(EVE, path, forged, old=owned(other), answers=TENANT).allowed


def test_a_job_does_not_grow_once_its_user_has_left_the_list():
    old = vcjob(EVE)
    assert by(EVE, "/jobs/validate", vcjob(EVE, replicas=3), old=old).problems == (MAY_NOT,)
    assert by(EVE, "/jobs/validate", vcjob(EVE, replicas=1), old=old).allowed
    assert by(ANN, "/jobs/validate", vcjob(EVE, replicas=3), old=old).allowed
    larger = group(EVE, minResources={"cpu": "9"})
    assert by(EVE, "/podgroups/validate", larger, old=group(EVE)).problems == (MAY_NOT,)
    assert by_controller("/podgroups/validate", larger, old=group(EVE)).allowed


def test_a_template_holds_no_record():
    spec = {"schedule": "* * * * *", "jobTemplate": {"metadata": meta("", ANN), **job()}}
    spec["jobTemplate"] = {"metadata": meta("", ANN), "spec": job()["spec"]}
    found = by(EVE, "/cronjobs/validate", {"metadata": meta("c"), "spec": spec}).problems
    assert any("spec.jobTemplate.metadata.annotations[optsched.io/submitter]" in f for f in found)


def test_queues_for_everybody_cost_no_question():
    for obj in (pod(EVE, **{GROUP_KEY: "g"}), pod(EVE, **{QUEUE_KEY: "lab"})):
        assert by(EVE, "/pods/validate", obj, OPEN).allowed
    assert by(EVE, "/podgroups/validate", group(), OPEN).allowed


# --- plain RBAC -----------------------------------------------------------------------------------


@pytest.mark.parametrize("may", [True, False])
def test_the_right_to_use_a_queue_is_asked_for(may: bool):
    question = AccessQuestion(EVE, "use", QUEUE, "lab", NAMESPACE)
    asked = by(EVE, "/jobs/validate", vcjob(), OPEN, settings=RBAC)
    assert (asked.allowed, asked.questions) == (False, (question,))
    found = by(EVE, "/jobs/validate", vcjob(), OPEN, settings=RBAC, answers={question: may})
    assert found.problems == (
        ()
        if may
        else (
            f"user eve may not use queue lab from namespace {NAMESPACE}: no role grants the verb "
            "use on queues.scheduling.volcano.sh lab",
        )
    )
    # A queue's access list admits its users without a role.
    assert by(ANN, "/jobs/validate", vcjob(), LAB, settings=RBAC).allowed


# --- Commands -------------------------------------------------------------------------------------


def command(kind: str = "Queue", version: str = "scheduling.volcano.sh/v1beta1") -> Raw:
    target = {"apiVersion": version, "kind": kind, "name": "lab", "uid": "u"}
    return {"metadata": meta("c"), "action": "CloseQueue", "target": target}


@pytest.mark.parametrize("old", [None, command("Job", "batch.volcano.sh/v1alpha1")])
def test_a_queue_is_closed_by_users_who_may_patch_it(old: Raw | None):
    question = AccessQuestion(EVE, "patch", QUEUE, "lab")
    assert by(EVE, "/commands/validate", command(), old=old).questions == (question,)
    yes, no = {question: True}, {question: False}
    assert by(EVE, "/commands/validate", command(), old=old, answers=yes).allowed
    assert by(EVE, "/commands/validate", command(), old=old, answers=no).problems == (
        "user eve may not create a Command for queue lab: needs the right to patch "
        "queues.scheduling.volcano.sh lab",
    )


def test_commands_for_jobs_are_for_users_of_the_namespace():
    assert by(EVE, "/commands/validate", command("Job", "batch.volcano.sh/v1alpha1")).allowed


# --- annotations that keep others out -------------------------------------------------------------

UPDATE_QUEUES = AccessQuestion(EVE, "update", QUEUE, "")
BIND_PODS = AccessQuestion(EVE, "create", POD, "", subresource="binding")
TENANT, ADMINISTRATOR = {UPDATE_QUEUES: False}, {UPDATE_QUEUES: True}
GUARDED_VALUES = [
    ("volcano.sh/preemptable", "false", False),
    ("volcano.sh/preemptable", "nonsense", False),
    ("volcano.sh/preemptable", "true", True),
    ("volcano.sh/cooldown-time", "8760h", False),
    ("optsched.io/user", "ann", False),
    ("optsched.io/user", "eve", True),
    ("a", "b", True),
]


def with_text(obj: Raw, key: str, value: str, field: str = "annotations") -> Raw:
    obj["metadata"].setdefault(field, {})[key] = value
    return obj


@pytest.mark.parametrize(("key", "value", "is_harmless"), GUARDED_VALUES)
@pytest.mark.parametrize("field", ["annotations", "labels"])
def test_a_tenant_does_not_shield_his_work_from_others(
    key: str, value: str, is_harmless: bool, field: str
):
    chosen = Settings(trusted=frozenset({CONTROLLER}), tenant_annotations=frozenset({key}))
    inside = vcjob()
    inside["spec"]["queue"] = "other"
    inside["spec"]["tasks"][0]["template"]["metadata"] = {field: {key: value}}
    outside = vcjob()
    outside["spec"]["queue"] = "other"
    for path, plain, obj in (
        ("/jobs/validate", None, inside),
        ("/jobs/validate", None, with_text(outside, key, value, field)),
        ("/podgroups/validate", group(queue="other"), None),
        ("/pods/validate", pod(EVE), None),
    ):
        changed = obj or with_text(deepcopy(plain), key, value, field)
        found = by(EVE, path, changed, answers=TENANT).problems
        assert bool(found) is not is_harmless
        assert all("user eve may not write" in each for each in found)
        assert by(EVE, path, changed, answers=ADMINISTRATOR).allowed
        assert by(EVE, path, changed, settings=chosen).allowed
        assert by(EVE, path, changed, old=changed).allowed
        if plain is not None:
            assert bool(by(EVE, path, changed, old=plain, answers=TENANT).problems) is bool(found)
    # A job that controllers create from a template is reviewed as its submitter's.
    made = with_text(vcjob(EVE), key, value, field)
    made["spec"]["queue"] = "other"
    assert by_controller("/jobs/validate", made, answers=TENANT).allowed is is_harmless


@pytest.mark.parametrize(
    "key",
    [
        "volcano.sh/topology-decision",
        "volcano.sh/gpu-index",
        "hami.io/x-devices-allocated",
        "optsched.io/admitted-queue",
    ],
)
def test_a_tenant_does_not_say_what_was_bound(key: str):
    claiming = pod(EVE, **{key: "lab"})
    for obj, old in ((claiming, None), (claiming, pod(EVE)), (pod(EVE), claiming)):
        (found,) = by(EVE, "/pods/validate", obj, old=old, answers=TENANT).problems
        assert f"metadata.annotations[{key}]: Forbidden: schedulers and device plugins" in found
        foreign = {**obj, "spec": {"schedulerName": "hami"}}
        for names, may in (((), True), (("hami",), False)):
            chosen = replace(SETTINGS, device_schedulers=frozenset(names))
            asked = {"old": old and {**old, "spec": foreign["spec"]}, "answers": TENANT}
            found = by(EVE, "/pods/validate", foreign, settings=chosen, **asked)
            assert found.allowed is may
    kubelet = Subject("system:node:n1", frozenset({"system:nodes"}))
    assert by(kubelet, "/pods/validate", claiming, old=pod(EVE)).allowed


@pytest.mark.parametrize(
    ("part", "denied"),
    [
        (
            {"metadata": {"annotations": {"optsched.io/admitted-queue": "lab"}}},
            "metadata.annotations[optsched.io/admitted-queue]: Forbidden: schedulers and device",
        ),
        (
            {"metadata": {"annotations": {"volcano.sh/gpu-index": "0"}}},
            "metadata.annotations[volcano.sh/gpu-index]: Forbidden: schedulers and device plugins",
        ),
        (
            {"spec": {"priorityClassName": "system-node-critical"}},
            "spec.priorityClassName: Forbidden: user eve may not name system-node-critical",
        ),
    ],
    ids=["queue", "device", "priority"],
)
def test_templates_of_a_job_hold_nothing_that_its_user_may_not_write_on_a_pod(
    part: Raw, denied: str
):
    """Controllers create the pods of a job, and admission does not review these pods."""
    around = world(queue("other"), priority_classes=frozenset({"system-node-critical"}))
    asked, made = vcjob(), vcjob(EVE)
    for obj in (asked, made):
        obj["spec"]["queue"] = "other"
        template = obj["spec"]["tasks"][0]["template"]
        for field, more in part.items():
            template[field] = {**template.get(field, {}), **more}
    for found in (
        by(EVE, "/jobs/validate", asked, around, answers=TENANT),
        by_controller("/jobs/validate", made, around, answers=TENANT),
    ):
        (problem,) = found.problems
        assert problem.startswith(f"spec.tasks[0].template.{denied}")
    assert by(EVE, "/jobs/validate", asked, around, answers=ADMINISTRATOR).allowed


@pytest.mark.parametrize(
    "key", ["optsched.io/shuffled-by-rescheduling", "optsched.io/moves", "optsched.io/evicted"]
)
def test_a_tenant_does_not_write_what_schedulers_note_on_podgroups(key: str):
    plain, path = group(queue="other"), "/podgroups/validate"
    marked = with_text(deepcopy(plain), key, "2026-11-24T00:00:00Z", "annotations")
    around = world(queue("other"))
    tenant = {**TENANT, BIND_PODS: False}
    for old in (None, plain):
        (found,) = by(EVE, path, marked, around, old=old, answers=tenant).problems
        assert f"metadata.annotations[{key}]: Forbidden: schedulers write it" in found
        for right in (UPDATE_QUEUES, BIND_PODS):
            may = {**tenant, right: True}
            assert by(EVE, path, marked, around, old=old, answers=may).allowed
    assert by(EVE, path, plain, around, old=marked, answers=tenant).allowed
    assert by(EVE, path, marked, around, old=marked, answers=tenant).allowed


def test_a_tenant_does_not_write_the_status_of_a_podgroup():
    plain, path = group(EVE, queue="other"), "/podgroups/mutate"
    pending = {**plain, "status": {"phase": "Pending"}}
    let_in = {**plain, "status": {"phase": "Inqueue"}}
    tenant = {**TENANT, BIND_PODS: False}
    for old, kept in ((None, {}), (plain, {}), (pending, pending["status"])):
        found = by(EVE, path, let_in, old=old, answers=tenant)
        assert patched(let_in, found)["status"] == kept
        for right in (UPDATE_QUEUES, BIND_PODS):
            found = by(EVE, path, let_in, old=old, answers={**tenant, right: True})
            assert patched(let_in, found)["status"] == let_in["status"]
        made = by_controller(path, let_in, old=old)
        assert patched(let_in, made)["status"] == let_in["status"]
    assert not by(EVE, path, pending, old=pending).questions


@pytest.mark.parametrize(
    ("name", "settings", "may"),
    [
        ("high", SETTINGS, True),
        ("system-node-critical", SETTINGS, False),
        ("high", Settings(tenant_classes=frozenset({"low"})), False),
        ("low", Settings(tenant_classes=frozenset({"low"})), True),
        ("", Settings(tenant_classes=frozenset({"low"})), True),
    ],
)
def test_a_tenant_names_priority_classes_that_settings_allow(
    name: str, settings: Settings, may: bool
):
    asked = group(queue="other", priorityClassName=name)
    around = world(queue("other"), priority_classes=frozenset({name}))
    found = by(EVE, "/podgroups/validate", asked, around, settings=settings, answers=TENANT)
    assert found.allowed is may
    worker = vcjob()
    worker["spec"] |= {"queue": "other", "priorityClassName": name}
    found = by(EVE, "/jobs/validate", worker, around, settings=settings, answers=TENANT)
    assert found.allowed is may
    plain = pod(EVE)
    plain["spec"]["priorityClassName"] = name
    found = by(EVE, "/pods/validate", plain, OPEN, settings=settings, answers=TENANT)
    assert found.allowed is may
    assert by(EVE, "/pods/validate", plain, OPEN, answers=ADMINISTRATOR).allowed
    # The API server adds the cluster's default priority class to pods without a class.
    usual = world(queue("other"), default_class=name or None)
    found = by(EVE, "/pods/validate", plain, usual, settings=settings, answers=TENANT)
    assert found.allowed is not name.startswith("system-")
    # Controllers create the pods of a job, and these pods are not reviewed.
    worker["spec"].pop("priorityClassName")
    worker["spec"]["tasks"][0]["template"]["spec"]["priorityClassName"] = name
    found = by(EVE, "/jobs/validate", worker, around, settings=settings, answers=TENANT)
    assert found.allowed is may
    assert by(EVE, "/podgroups/validate", asked, settings=settings, answers=ADMINISTRATOR).allowed


def test_a_user_learns_that_a_priority_class_counts_as_far_as_the_pods_have_it():
    asked = group(queue="other", priorityClassName="high")
    lifting = Settings(trusted=frozenset({CONTROLLER}), tenant_classes=frozenset({"high"}))
    (warning,) = by(EVE, "/podgroups/validate", asked, OPEN, answers=ADMINISTRATOR).warnings
    assert "high takes effect only if the pods have that priority too" in warning
    assert not by(EVE, "/podgroups/validate", asked, OPEN, settings=lifting).warnings
    assert not by_controller("/podgroups/validate", asked, OPEN).warnings
    worker, around = vcjob(), world(queue("lab"), priority_classes=frozenset({"high", "low"}))
    worker["spec"]["priorityClassName"] = "high"
    assert not by(EVE, "/jobs/validate", worker, around).warnings
    worker["spec"]["tasks"][0]["template"]["spec"]["priorityClassName"] = "low"
    (warning,) = by(EVE, "/jobs/validate", worker, around).warnings
    assert "high takes effect only if the pods have that priority too" in warning
