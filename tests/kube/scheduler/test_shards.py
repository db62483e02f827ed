from __future__ import annotations

import pytest

from optsched.api.hypernode import parse_nodeshard
from optsched.cluster.node_resources import Shard, Sharding, ShardMode
from optsched.kube.scheduler.status_writer import shard_patch
from tests.formats.objects import thing


def told(wanted: list[str], **status: list[str]):
    obj = thing(
        "shard.volcano.sh/v1alpha1",
        "NodeShard",
        "mine",
        spec={"nodesDesired": wanted},
        status=status,
    )
    found, errors = parse_nodeshard(obj)
    assert found is not None
    assert errors == ()
    return {"mine": found}


def seen(wanted: tuple[str, ...], *theirs: str) -> Sharding:
    others = Shard("theirs", (), theirs)
    return Sharding(ShardMode.HARD, "mine", (Shard("mine", wanted), others))


def test_the_status_says_what_is_used_and_what_others_still_have():
    patch = shard_patch(seen(("a", "b", "c"), "b"), told(["c", "b", "a"]), 1000)
    assert patch is not None
    assert (patch.ref.name, patch.subresource) == ("mine", "status")
    assert patch.body == {
        "status": {
            "nodesInUse": ["a", "c"],
            "nodesToRemove": [],
            "nodesToAdd": ["b"],
            "lastUpdateTime": "1970-01-01T00:00:01Z",
        }
    }


def test_what_the_last_session_used_is_in_use_until_the_next():
    patch = shard_patch(seen(("a", "b")), told(["b", "c"]), 0)
    assert patch is not None
    body = patch.body["status"]
    assert (body["nodesInUse"], body["nodesToRemove"], body["nodesToAdd"]) == (
        ["a", "b"],
        ["a"],
        ["c"],
    )


def test_nothing_is_written_twice():
    shards = told(["a", "b"], nodesInUse=["b", "a"])
    assert shard_patch(seen(("a", "b")), shards, 5) is None


@pytest.mark.parametrize("mode", list(ShardMode))
def test_nothing_is_written_without_a_shard(mode: ShardMode):
    assert shard_patch(Sharding(mode, "mine"), {}, 0) is None
    if mode is ShardMode.NONE:
        assert shard_patch(Sharding(mode, "mine", (Shard("mine", ("a",)),)), told(["a"]), 0) is None
