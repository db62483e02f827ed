"""NodeShards from objects to snapshots, and dumps that record the scheduler's shard."""

from __future__ import annotations

import pytest

from optsched.cluster.node_resources import Shard, Sharding, ShardMode
from optsched.formats.codec.pods.reader import DecodeOptions
from optsched.formats.snapshots.assembly import assemble
from optsched.formats.snapshots.writer import encode
from tests.formats.objects import node, thing

SHARD = thing(
    "shard.volcano.sh/v1alpha1",
    "NodeShard",
    "volcano",
    spec={"nodesDesired": ["n2", "n1", "n2"]},
    status={"nodesInUse": ["n1"]},
)
READ = Shard("volcano", ("n1", "n2"), ("n1",))
HARD = Sharding(ShardMode.HARD, "volcano")


def test_shards_are_read_whether_anybody_asks_for_them_or_not():
    assert assemble([SHARD]).snapshot.sharding == Sharding(shards=(READ,))
    asked = assemble([SHARD], DecodeOptions(sharding=HARD)).snapshot.sharding
    assert asked == Sharding(ShardMode.HARD, "volcano", (READ,))


def test_a_dump_says_which_was_ours_unless_somebody_knows_better():
    dump = encode(assemble([SHARD, node()], DecodeOptions(sharding=HARD)).snapshot)
    assert dump[0]["sharding"] == {"mode": "hard", "name": "volcano"}
    assert assemble(dump).snapshot.sharding.mode is ShardMode.HARD
    other = DecodeOptions(sharding=Sharding())
    assert assemble(dump, other).snapshot.sharding == Sharding(shards=(READ,))


@pytest.mark.parametrize("given", [{"mode": "firm"}, {"mode": "hard", "name": 7}, "hard"])
def test_a_dump_whose_sharding_has_no_reading(given: object):
    dump = encode(assemble([SHARD]).snapshot)
    dump[0]["sharding"] = given
    found = assemble(dump)
    (problem,) = found.problems
    assert (problem.kind, problem.path) == ("Snapshot", "sharding")
    assert found.snapshot.sharding == Sharding(shards=(READ,))


def test_a_shard_that_can_not_be_read_in_part_is_told_and_used():
    odd = {**SHARD, "spec": {"nodesDesired": ["n1", 7]}}
    found = assemble([odd])
    assert [(p.kind, p.path) for p in found.problems] == [("NodeShard", "spec.nodesDesired[1]")]
    assert found.snapshot.sharding.shards == (Shard("volcano", ("n1",), ("n1",)),)
