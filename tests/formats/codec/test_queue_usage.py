"""The past usage of queues, stored as an annotation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.cluster.amounts import Usage
from optsched.cluster.snapshot import Queue, Snapshot
from optsched.formats.codec.queues import USAGE, read_usage, usage_text
from optsched.formats.snapshots.assembly import assemble
from optsched.formats.snapshots.writer import encode

amounts = st.floats(0, 1e20, allow_nan=False)
usages = st.builds(
    lambda found, at: Usage(tuple(sorted(found.items())), at),
    st.dictionaries(st.sampled_from(["cpu", "nvidia.com/gpu"]), amounts),
    st.integers(0, 2 * 10**12),
)


@given(usages)
def test_it_comes_back_bit_by_bit(usage):
    assert read_usage({USAGE: usage_text(usage)}) == (usage, ())


def test_a_snapshot_carries_it():
    queues = tuple(Queue(n, reclaimable=n != "root") for n in ("default", "q", "root"))
    usage = {"q": Usage((("cpu", 1 / 3),), 5)}
    snapshot = Snapshot(7, queues=queues, usage=usage)
    again = assemble(encode(snapshot)).snapshot
    assert again.usage == usage
    assert USAGE not in again.queue_by_name["q"].annotations


def test_without_the_annotation_nothing_is_known():
    assert read_usage({}) == (None, ())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8 hours",
        "[]",
        "{}",
        '{"at": "2026-11-21T05:38:00Z"}',
        '{"at": "yesterday", "resourceSeconds": {}}',
        '{"at": 5, "resourceSeconds": {}}',
        '{"at": "2026-11-21T05:38:00Z", "resourceSeconds": {"cpu": -1}}',
        '{"at": "2026-11-21T05:38:00Z", "resourceSeconds": {"cpu": NaN}}',
        '{"at": "2026-11-21T05:38:00Z", "resourceSeconds": {"cpu": "much"}}',
        '{"at": "2026-11-21T05:38:00Z", "resourceSeconds": ["cpu"]}',
    ],
)
def test_what_can_not_be_read_is_named_and_counts_as_none(text):
    usage, (error,) = read_usage({USAGE: text})
    assert usage is None
    assert str(error).startswith(f"metadata.annotations[{USAGE}]: ")
    assert "resourceSeconds" in str(error)
    manifest = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "q", "annotations": {USAGE: text}},
    }
    found = assemble([manifest])
    assert found.snapshot.usage == {}
    assert found.snapshot.queue_by_name["q"].problem is None
    assert [p for p in found.problems if USAGE in str(p)]
