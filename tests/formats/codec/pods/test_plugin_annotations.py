from __future__ import annotations

import pytest

from optsched.formats.codec.pods.reader import PodDecoder
from optsched.formats.snapshots.assembly import assemble
from optsched.formats.snapshots.writer import encode

ZONE, PREEMPTABLE = "volcano.sh/revocable-zone", "volcano.sh/preemptable"
TYPE, WEIGHT = (
    "volcano.sh/resource-strategy-scoring-type",
    "volcano.sh/resource-strategy-weight",
)


def pod(name: str = "p", **annotations: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"schedulerName": "volcano", "containers": [{"name": "c"}]},
    }


def notes(**annotations: str) -> dict[str, str]:
    found = assemble([pod(**annotations)])
    assert assemble(encode(found.snapshot)).snapshot == found.snapshot
    (task,) = found.snapshot.gangs[0].tasks
    return dict(task.shape.notes)


def test_what_rules_look_at_is_kept_and_nothing_else() -> None:
    assert notes(**{TYPE: "MostAllocated", WEIGHT: "{}", "team": "x"}) == {
        TYPE: "MostAllocated",
        WEIGHT: "{}",
    }
    assert notes() == {}


@pytest.mark.parametrize(
    ("annotations", "is_lent"),
    [
        ({ZONE: "*"}, True),
        ({ZONE: "rz1"}, False),
        ({PREEMPTABLE: "true"}, True),
        ({PREEMPTABLE: "false"}, False),
        ({ZONE: "", PREEMPTABLE: "true"}, False),
        ({ZONE: "*", PREEMPTABLE: "false"}, True),
    ],
)
def test_a_pod_may_go_to_lent_nodes_if_it_says_so(
    annotations: dict[str, str], is_lent: bool
) -> None:
    assert notes(**annotations) == ({ZONE: "*"} if is_lent else {})


def test_pods_that_differ_in_a_note_do_not_share_a_shape() -> None:
    decoder = PodDecoder()
    plain, again, noted = (
        decoder.task(pod(name, **marks)).shape
        for name, marks in (("a", {}), ("b", {}), ("c", {ZONE: "*"}))
    )
    assert plain is again
    assert plain != noted
