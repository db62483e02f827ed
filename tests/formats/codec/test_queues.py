from __future__ import annotations

import pytest

from optsched.cluster.snapshot import NO_GROUPS, NodeGroups, Queue
from optsched.formats.snapshots.assembly import assemble
from optsched.formats.snapshots.writer import encode

LIMITS = "volcano.sh/nodegroup-resource-limits"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def queue(limits: str | None = None, **affinity: object) -> dict[str, object]:
    annotations = {} if limits is None else {LIMITS: limits}
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "q", "annotations": annotations},
        "spec": {"affinity": affinity} if affinity else {},
    }


def read(obj: dict[str, object]) -> Queue:
    found = assemble([obj])
    assert found.problems == ()
    assert assemble(encode(found.snapshot)).snapshot == found.snapshot
    return found.snapshot.queue_by_name["q"]


def test_both_affinities_are_read_and_written() -> None:
    found = read(
        queue(
            nodeGroupAffinity={REQUIRED: ["a", "b"], PREFERRED: ["b"]},
            nodeGroupAntiAffinity={REQUIRED: ["c"], PREFERRED: ["d"]},
        )
    )
    assert found.node_groups == NodeGroups(("a", "b"), ("b",), ("c",), ("d",))


def test_most_queues_say_nothing() -> None:
    assert read(queue()).node_groups is NO_GROUPS


def test_limits_are_read_group_by_group() -> None:
    found = read(queue('{"b": {"cpu": "3"}, "a": {"memory": "1Gi", "cpu": "500m"}}'))
    assert found.node_groups.limits == (
        ("a", (("cpu", 500), ("memory", 1 << 30))),
        ("b", (("cpu", 3000),)),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": {"cpu":', "is not JSON"),
        ("[]", "is not a mapping: write"),
        ('{"a": {"cpu": "many"}}', "a[cpu]"),
        ('{"a": 3}', "a: "),
    ],
)
def test_limits_without_a_reading_say_why(text: str, message: str) -> None:
    found = read(queue(text)).node_groups
    assert found.limits == ()
    assert found.problem.startswith(f"annotation {LIMITS}")
    assert message in found.problem
