from __future__ import annotations

import pytest

from optsched.cluster.node_resources import Shard, Sharding, ShardMode

MINE, THEIRS = Shard("mine", ("n1", "n2")), Shard("theirs", ("n2", "n3"), ("n2",))


@pytest.mark.parametrize(
    ("sharding", "nodes"),
    [
        (Sharding(), None),
        (Sharding(ShardMode.NONE, "mine", (MINE,)), None),
        (Sharding(ShardMode.HARD, "mine", ()), None),
        (Sharding(ShardMode.SOFT, "mine", (THEIRS,)), None),
        (Sharding(ShardMode.HARD, "mine", (MINE,)), {"n1", "n2"}),
        (Sharding(ShardMode.SOFT, "mine", (MINE, THEIRS)), {"n1"}),
        (Sharding(ShardMode.HARD, "theirs", (MINE, THEIRS)), {"n2", "n3"}),
        (Sharding(ShardMode.HARD, "empty", (Shard("empty"),)), set()),
    ],
)
def test_which_nodes_are_ours(sharding: Sharding, nodes: set[str] | None) -> None:
    assert sharding.nodes == nodes


@pytest.mark.parametrize(
    ("mode", "excluded"),
    [(ShardMode.NONE, set()), (ShardMode.SOFT, set()), (ShardMode.HARD, {"n2", "n3"})],
)
def test_only_a_hard_shard_excludes_others(mode: ShardMode, excluded: set[str]) -> None:
    sharding = Sharding(mode, "mine", (MINE, THEIRS))
    assert {n for n in ("n1", "n2", "n3") if sharding.excludes(n)} == excluded


def test_a_shard_may_be_missing() -> None:
    assert Sharding(ShardMode.HARD, "mine", (THEIRS,)).is_missing
    assert not Sharding(ShardMode.HARD, "mine", (MINE,)).is_missing
    assert not Sharding().is_missing
