"""Every rule of Volcano's admission and of the guides has a test of its message.

The rules are those of pkg/webhooks/admission, by webhook path. G1 to G32 are the differences
between guides and Volcano. A test is named by module and function, with its table rows in brackets.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import pytest

from optsched.admission.services import SERVICE_OF

REFUSED = "test_jobs.test_a_job_that_could_never_run_is_refused_with_a_sentence"
QUEUES = "test_queues.test_a_queue_that_contradicts_itself_or_others_is_refused"
TIMES = "test_others.test_timetables_that_are_refused"
FIELDS = "test_others.test_fields_that_hold_what_they_may_not"
FILLED = "test_jobs.test_everything_that_volcano_fills_in_is_filled_in"
FIXED = "test_jobs.test_what_may_not_change"

RULES = {
    "/jobs/mutate queue, maxRetry, names, DNS, minimums": FILLED,
    "/jobs/mutate schedulerName": (
        "test_jobs.test_the_first_scheduler_is_the_one_of_jobs_that_name_none"
    ),
    "/jobs/mutate minAvailable of partitions": (
        "test_jobs.test_partitions_set_the_minimum_of_a_task"
    ),
    "/jobs/mutate svc and ssh": "test_jobs.test_plugins_bring_those_that_they_need",
    "/jobs/mutate nothing else": "test_jobs.test_what_the_user_wrote_is_left_alone",
    "/jobs/validate at least one task": "test_jobs.test_a_job_without_tasks_is_refused",
    "/jobs/validate mpi": f"{REFUSED}[mpi without master]",
    "/jobs/validate tier xor tierName": f"{REFUSED}[two tiers][two tiers of partitions]",
    "/jobs/validate task.minAvailable": (
        f"{REFUSED}[task minAvailable above replicas][task minAvailable below zero][replicas]"
    ),
    "/jobs/validate job.minAvailable": (
        f"{REFUSED}[job minAvailable above replicas][minAvailable below zero]"
    ),
    "/jobs/validate names": f"{REFUSED}[task names twice][task name][job name][pod name too long]",
    "/jobs/validate pod template": (
        "test_pod_templates.test_a_template_that_the_api_server_refuses_is_denied_by_field"
    ),
    "/jobs/validate topologyPolicy": (
        f"{REFUSED}[parts of cpus][parts of cpus before it starts][topologyPolicy]"
    ),
    "/jobs/validate partitionPolicy": (
        f"{REFUSED}[partition of nothing][partitions do not make replicas]"
        "[partitions do not make minAvailable]"
    ),
    "/jobs/validate plugins": f"{REFUSED}[unknown plugin][plugins no lists]",
    "/jobs/validate volumes": (
        f"{REFUSED}[volume without mountPath][mountPath twice][neither claim nor name]"
        "[claim and name][claim name]"
    ),
    "/jobs/validate queue exists, is no root": f"{REFUSED}[queue is not there][queue is the root]",
    "/jobs/validate queue is open": "test_jobs.test_a_queue_that_is_not_open_takes_no_jobs",
    "/jobs/validate queue is a leaf": "test_jobs.test_only_leaves_take_jobs",
    "/jobs/validate dependsOn": f"{REFUSED}[tasks wait in a circle][tasks wait for nobody]",
    "/jobs/validate change: what may": "test_jobs.test_a_job_may_be_scaled",
    "/jobs/validate change: what may not": FIXED,
    "/jobs/validate change: names of claims": (
        "test_jobs.test_a_go_client_that_spells_the_same_differently_changes_nothing"
    ),
    "/jobs/validate change: metadata": (
        "test_jobs.test_metadata_may_change_also_where_the_job_would_not_be_taken_today"
    ),
    "policies: event xor exitCode": f"{REFUSED}[event and exitCode]",
    "policies: event or exitCode": f"{REFUSED}[neither event nor exitCode]",
    "policies: exitCode": f"{REFUSED}[exitCode 0][exitCode twice][exitCode no number]",
    "policies: events once": f"{REFUSED}[event twice][event twice by its alias]",
    "policies: any event alone": f"{REFUSED}[any event and another]",
    "policies: events": f"{REFUSED}[internal event][unknown event][unknown event in a list]",
    "policies: actions": f"{REFUSED}[no action][unknown action][action of controllers]",
    "policies: all that is public": "test_jobs.test_every_public_event_may_have_every_action",
    "/queues/mutate hierarchy": ("test_queues.test_the_older_notation_of_trees_begins_at_the_root"),
    "/queues/mutate reclaimable, weight": "test_queues.test_a_new_queue_is_filled_in",
    "/queues/validate quantities": f"{QUEUES}[amount][negative amount][guarantee negative]",
    "/queues/validate amounts": (
        f"{QUEUES}[guarantee above deserved][deserved above capability][guarantee above capability]"
    ),
    "/queues/validate state": f"{QUEUES}[state][unknown state]",
    "/queues/validate hierarchy": (
        f"{QUEUES}[hierarchy lengths][hierarchy weight no number][hierarchy weight zero]"
        "[hierarchy sub path]"
    ),
    "/queues/validate parent": (
        f"{QUEUES}[parent is itself][parent is not there][too deep][parent has pods]"
    ),
    "/queues/validate capability of ancestors": f"{QUEUES}[capability above an ancestor]",
    "/queues/validate root binds nobody": (
        "test_queues.test_the_capability_of_the_root_binds_nobody_and_missing_ones_neither"
    ),
    "/queues/validate siblings": f"{QUEUES}[deserved of siblings][guarantee of siblings]",
    "/queues/validate below": f"{QUEUES}[capability below a child][deserved below children]",
    "/queues/validate root": "test_queues.test_the_root_keeps_what_it_has",
    "/queues/validate delete: built in": "test_queues.test_the_builtin_queues_stay",
    "/queues/validate delete: children": "test_queues.test_a_queue_with_children_stays",
    "/queues/validate delete: pods": (
        "test_queues.test_a_queue_whose_pods_hold_something_stays_if_an_administrator_says_so"
    ),
    "/podgroups/mutate": "test_others.test_a_podgroup_without_a_queue_gets_that_of_its_namespace",
    "/podgroups/validate": "test_others.test_podgroups_that_are_refused",
    "/pods/mutate": "test_others.test_pods_get_what_their_resource_group_has_for_them",
    "/pods/mutate first match": "test_others.test_pods_of_no_group_pass_as_they_are",
    "/pods/validate": "test_others.test_budgets_of_pods",
    "/pods/validate not both": "test_others.test_one_budget_is_enough",
    "/hypernodes/validate": "test_others.test_hypernodes_that_are_refused",
    "/hypernodes/validate selectors": (
        f"{FIELDS}[type of a member][two selectors][labels of HyperNodes][tier]"
    ),
    "/jobflows/validate": "test_others.test_flows_that_are_refused",
    "/jobflows/validate in time": "test_others.test_a_dense_flow_is_looked_at_in_no_time",
    "/cronjobs/validate schedule": f"{TIMES}[no schedule][zone in schedule][schedule]",
    "/cronjobs/validate timeZone": f"{TIMES}[empty zone][local zone][unknown zone]",
    "/cronjobs/validate name": f"{TIMES}[long name]",
    "/cronjobs/validate name is one": f"{FIELDS}[name of a CronJob]",
    "/cronjobs/validate job": f"{TIMES}[job inside][no job][queue is not for its user]",
    "/jobtemplates/validate": f"{FIELDS}[template without tasks][template]",
    "G1": "test_queues.test_a_guarantee_counts_as_deserved_with_a_warning",
    "G2": "test_jobs.test_devices_in_requests_alone_are_copied_to_limits_with_a_warning",
    "G3": f"{REFUSED}[queue is not there]",
    "G4": "test_jobs.test_the_event_of_the_guides_becomes_the_one_of_the_api",
    "G30": "test_queues.test_the_builtin_queues_stay",
    "G32": "test_jobs.test_metadata_of_a_job_may_always_change",
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_a_test(rule: str):
    name, *rows = re.split(r"\]?\[|\]$", RULES[rule])
    module, function = name.split(".")
    test = getattr(import_module(f"tests.admission.{module}"), function)
    assert {row for row in rows if row} <= ids_of(test)


def ids_of(test: Any) -> set[str]:
    """Return the names of the rows in a test's tables."""
    tables = [
        mark.args[1] for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"
    ]
    return {getattr(row, "id", None) or "" for table in tables for row in table}


OURS = {
    *("/cronjobs/mutate", "/jobflows/mutate", "/jobtemplates/mutate", "/commands/validate"),
    "/schedulinggroups/mutate",
    "/schedulinggroups/validate",
}
"""Paths that Volcano does not have: tests/admission/test_tenants.py."""


def test_every_path_has_its_rules():
    assert SERVICE_OF.keys() - OURS <= {rule.split()[0] for rule in RULES}
