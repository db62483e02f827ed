"""The times of evictions by plugins, as recorded on PodGroups."""

from __future__ import annotations

import pytest

from optsched.api.kinds import POD_GROUP
from optsched.formats.codec.pod_groups import MOST_SHUFFLES, last_shuffle_ms, shuffle_annotation
from optsched.formats.snapshots.assembly import assemble
from optsched.kube.cache.cluster_cache import ClusterCache
from optsched.kube.cache.reflector import Changed
from tests.formats.objects import group

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


def test_names_of_tenants_are_forgotten_and_never_hide_a_plugin() -> None:
    """The time that this process recorded counts, whatever the annotations say."""
    cache = ClusterCache()
    cache.record_shuffle("rescheduling", 5_000)
    late = "2099-01-01T00:00:00Z"
    for number in range(3 * MOST_SHUFFLES):
        marks = {f"{KEY}x{number}": "1970-01-01T00:00:06Z", f"{KEY}rescheduling": late}
        cache.apply(POD_GROUP, Changed(group("g", annotations=marks)))
    found = cache.snapshot(60_000).last_shuffle_ms
    assert found["rescheduling"] == 5_000
    assert len(found) <= MOST_SHUFFLES + 1
