from __future__ import annotations

from typing import Any

import pytest

from optsched.api.fields import LabelCondition, LabelSelector
from optsched.api.podgroup import (
    NetworkTopology,
    PodGroup,
    PodGroupCondition,
    PodGroupPhase,
    SubGroupPolicy,
    TopologyMode,
    parse_podgroup,
)


def group(spec: Any = None, status: Any = None) -> PodGroup:
    found, errors = parse_podgroup(
        {"metadata": {"name": "job", "namespace": "ml"}, "spec": spec, "status": status}
    )
    assert found is not None
    assert found.errors == errors
    return found


@pytest.mark.parametrize("empty", [None, {}])
def test_an_empty_group_has_volcanos_defaults(empty: Any):
    found = group(empty, empty)
    assert not found.errors
    assert found.key == "ml/job"
    assert (found.min_member, found.queue, found.priority_class) == (0, "default", "")
    assert found.min_task_member == found.min_resources == {}
    assert found.topology is None
    assert found.status.phase is PodGroupPhase.PENDING


def test_every_field_of_a_full_group():
    found = group(
        {
            "minMember": 4,
            "minTaskMember": {"worker": 3, "ps": 1},
            "queue": "ml-training",
            "priorityClassName": "high-priority",
            "minResources": {"cpu": "8", "memory": "32Gi"},
            "networkTopology": {"mode": "soft", "highestTierAllowed": 2},
            "subGroupPolicy": [
                {
                    "name": "tp",
                    "subGroupSize": 8,
                    "minSubGroups": 2,
                    "labelSelector": {
                        "matchLabels": {"role": "worker"},
                        "matchExpressions": [
                            {"key": "zone", "operator": "In", "values": ["a", "b"]},
                            {"key": "old", "operator": "DoesNotExist"},
                        ],
                    },
                    "matchLabelKeys": ["volcano.sh/partition-id"],
                    "networkTopology": {"highestTierName": "rack"},
                }
            ],
        },
        {
            "phase": "Inqueue",
            "running": 3,
            "succeeded": 2,
            "failed": 1,
            "conditions": [
                {
                    "type": "Unschedulable",
                    "status": "True",
                    "transitionID": "s-1",
                    "lastTransitionTime": "2026-11-21T05:38:00Z",
                    "reason": "NotEnoughResources",
                    "message": "4/4 tasks in gang unschedulable",
                }
            ],
        },
    )
    assert not found.errors
    assert (found.min_member, found.min_task_member) == (4, {"worker": 3, "ps": 1})
    assert (found.queue, found.priority_class) == ("ml-training", "high-priority")
    assert found.min_resources == {"cpu": 8000, "memory": 32 * 2**30}
    assert found.topology == NetworkTopology(TopologyMode.SOFT, highest_tier=2)
    assert found.sub_groups == (
        SubGroupPolicy(
            name="tp",
            size=8,
            min_sub_groups=2,
            selector=LabelSelector(
                {"role": "worker"},
                (LabelCondition("zone", "In", ("a", "b")), LabelCondition("old", "DoesNotExist")),
            ),
            match_label_keys=("volcano.sh/partition-id",),
            topology=NetworkTopology(TopologyMode.HARD, highest_tier_name="rack"),
        ),
    )
    assert found.status.phase is PodGroupPhase.INQUEUE
    assert (found.status.running, found.status.succeeded, found.status.failed) == (3, 2, 1)
    assert found.status.conditions == (
        PodGroupCondition(
            "Unschedulable",
            "True",
            "s-1",
            1795239480000,
            "NotEnoughResources",
            "4/4 tasks in gang unschedulable",
        ),
    )


def test_an_empty_rule_for_smaller_groups_has_volcanos_defaults():
    (rule,) = group({"subGroupPolicy": [{}]}).sub_groups
    assert rule == SubGroupPolicy(name="", size=1, min_sub_groups=0)


def test_a_missing_selector_differs_from_an_empty_one():
    (rule,) = group({"subGroupPolicy": [{"labelSelector": {}}]}).sub_groups
    assert rule.selector == LabelSelector()


def test_tier_zero_is_a_limit():
    assert group({"networkTopology": {"highestTierAllowed": 0}}).topology == NetworkTopology(
        TopologyMode.HARD, highest_tier=0
    )


def test_empty_texts_count_as_absent():
    found = group({"queue": "", "networkTopology": {"mode": ""}}, {"phase": ""})
    assert not found.errors
    assert found.queue == "default"
    assert found.topology == NetworkTopology(TopologyMode.HARD)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"minMember": -1}, "spec.minMember"),
        ({"minMember": "4"}, "spec.minMember"),
        ({"minMember": True}, "spec.minMember"),
        ({"minTaskMember": {"worker": "3"}}, "spec.minTaskMember[worker]"),
        ({"minTaskMember": [3]}, "spec.minTaskMember"),
        ({"queue": 7}, "spec.queue"),
        ({"minResources": {"cpu": "1_000"}}, "spec.minResources[cpu]"),
        ({"networkTopology": {"mode": "firm"}}, "spec.networkTopology.mode"),
        (
            {"networkTopology": {"highestTierAllowed": -1}},
            "spec.networkTopology.highestTierAllowed",
        ),
        ({"networkTopology": "hard"}, "spec.networkTopology"),
        (
            {"networkTopology": {"highestTierAllowed": 1, "highestTierName": "rack"}},
            "spec.networkTopology.highestTierName",
        ),
        ({"subGroupPolicy": {}}, "spec.subGroupPolicy"),
        ({"subGroupPolicy": [{}, {"subGroupSize": 0}]}, "spec.subGroupPolicy[1].subGroupSize"),
        ({"subGroupPolicy": [{"minSubGroups": -1}]}, "spec.subGroupPolicy[0].minSubGroups"),
        (
            {"subGroupPolicy": [{"labelSelector": {"matchLabels": {"a": 1}}}]},
            "spec.subGroupPolicy[0].labelSelector.matchLabels[a]",
        ),
        (
            {
                "subGroupPolicy": [
                    {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}}
                ]
            },
            "spec.subGroupPolicy[0].labelSelector.matchExpressions[0].operator",
        ),
        (
            {"subGroupPolicy": [{"labelSelector": {"matchExpressions": [{"operator": "In"}]}}]},
            "spec.subGroupPolicy[0].labelSelector.matchExpressions[0].key",
        ),
        ({"subGroupPolicy": [{"matchLabelKeys": "a"}]}, "spec.subGroupPolicy[0].matchLabelKeys"),
    ],
)
def test_a_bad_field_is_named(spec: Any, path: str):
    assert [error.path for error in group(spec).errors] == [path]


@pytest.mark.parametrize(
    ("status", "path"),
    [
        ({"phase": "Sleeping"}, "status.phase"),
        ({"running": -1}, "status.running"),
        ({"conditions": {}}, "status.conditions"),
        (
            {"conditions": [{"type": "Scheduled", "lastTransitionTime": "now"}]},
            "status.conditions[0].lastTransitionTime",
        ),
    ],
)
def test_a_bad_status_is_named(status: Any, path: str):
    assert [error.path for error in group(None, status).errors] == [path]


def test_names_that_only_a_server_refuses_are_still_read():
    found = group({"queue": "team_A"})
    assert not found.errors
    assert found.queue == "team_A"


@pytest.mark.parametrize("obj", [None, {}, {"metadata": {"namespace": "ml"}}])
def test_without_a_name_there_is_no_group(obj: Any):
    found, errors = parse_podgroup(obj)
    assert found is None
    assert len(errors) == 1
