from __future__ import annotations

from optsched.api import kinds
from optsched.api.crds import schema_of
from optsched.api.podgroup import (
    PodGroupCondition,
    PodGroupPhase,
    parse_podgroup,
    podgroup_status_patch,
)
from optsched.api.queue import QueueCounts, parse_queue, queue_status_patch

CONDITION = PodGroupCondition(
    type="Unschedulable",
    status="True",
    transition_id="s-1",
    transition_ms=1795239480000,
    reason="NotEnoughResources",
    message="no room",
)


def test_a_podgroups_status_has_volcanos_names():
    patch = podgroup_status_patch(
        PodGroupPhase.PENDING, [CONDITION], running=0, succeeded=1, failed=2
    )
    assert patch == {
        "status": {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "Unschedulable",
                    "status": "True",
                    "transitionID": "s-1",
                    "lastTransitionTime": "2026-11-21T05:38:00Z",
                    "reason": "NotEnoughResources",
                    "message": "no room",
                }
            ],
            "running": 0,
            "succeeded": 1,
            "failed": 2,
        }
    }


def test_a_written_podgroup_status_reads_back():
    bare = PodGroupCondition("Scheduled", "True")
    patch = podgroup_status_patch(
        PodGroupPhase.RUNNING, (CONDITION, bare), running=4, succeeded=0, failed=0
    )
    found, errors = parse_podgroup({"metadata": {"name": "a"}, **patch})
    assert errors == ()
    assert found is not None
    assert found.status.conditions == (CONDITION, bare)
    assert (found.status.phase, found.status.running) == (PodGroupPhase.RUNNING, 4)


def test_a_queues_status_has_volcanos_names():
    patch = queue_status_patch(
        {"nvidia.com/gpu": 7, "cpu": 32500, "memory": 108 * 2**30, "pods": 0},
        QueueCounts(unknown=1, pending=2, running=3, inqueue=4, completed=5),
    )
    assert patch == {
        "status": {
            "allocated": {"cpu": "32500m", "memory": "108Gi", "nvidia.com/gpu": "7", "pods": "0"},
            "unknown": 1,
            "pending": 2,
            "running": 3,
            "inqueue": 4,
            "completed": 5,
        }
    }


def test_resources_that_are_gone_are_removed():
    patch = queue_status_patch({"cpu": 0}, QueueCounts(), previous=["cpu", "nvidia.com/gpu"])
    assert patch["status"]["allocated"] == {"cpu": "0", "nvidia.com/gpu": None}


def test_a_written_queue_status_reads_back():
    counts, allocated = QueueCounts(running=3), {"cpu": 1500, "pods": 2}
    patch = queue_status_patch(allocated, counts)
    found, errors = parse_queue({"metadata": {"name": "a"}, **patch})
    assert errors == ()
    assert found is not None
    assert (found.status.allocated, found.status.counts) == (allocated, counts)


def test_only_fields_of_the_schema_are_written():
    group = podgroup_status_patch(
        PodGroupPhase.PENDING, [CONDITION], running=0, succeeded=0, failed=0
    )
    status = schema_of(kinds.POD_GROUP)["properties"]["status"]["properties"]
    assert group["status"].keys() == status.keys()
    assert (
        group["status"]["conditions"][0].keys()
        == status["conditions"]["items"]["properties"].keys()
    )
    queue = queue_status_patch({}, QueueCounts())["status"]
    assert queue.keys() <= schema_of(kinds.QUEUE)["properties"]["status"]["properties"].keys()
