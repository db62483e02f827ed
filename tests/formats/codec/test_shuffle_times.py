"""When plugins had pods evicted, as PodGroups say."""

from __future__ import annotations

import pytest

from optsched.formats.codec.pod_groups import last_shuffle_ms, shuffle_annotation
from optsched.formats.snapshots.assembly import assemble

KEY = "optsched.io/shuffled-by-"


def test_what_is_written_is_read() -> None:
    marks = [
        shuffle_annotation("tdm", 1_500),
        shuffle_annotation("tdm", 90_000),
        shuffle_annotation("other", 7),
    ]
    assert last_shuffle_ms(marks) == {"tdm": 90_000, "other": 7}
    assert last_shuffle_ms([{"a": "b"}]) == {}


@pytest.mark.parametrize("text", ["", "soon", "12:00"])
def test_what_is_no_time_says_nothing(text: str) -> None:
    assert last_shuffle_ms([{f"{KEY}tdm": text}]) == {"tdm": 0}


def test_a_snapshot_of_manifests_knows() -> None:
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "a", "annotations": {f"{KEY}tdm": "1970-01-01T00:01:00Z"}},
        "spec": {"minMember": 1},
    }
    assert assemble([group]).snapshot.last_shuffle_ms == {"tdm": 60_000}
