"""Tests of HyperNodes that follow the labels of nodes."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from optsched.api.kinds import CONFIG_MAP, HYPER_NODE, NODE, Ref
from optsched.controllers.hypernode import NODE_COUNTS, ConfigError, Discovery, read_sources
from tests.support.memory import MemoryWorld

CONFIG = Ref(CONFIG_MAP, "volcano-system", "volcano-controller-configmap")
ALL = Ref(HYPER_NODE, "", "")
CONTROLLER = Discovery().controller
TEXT = textwrap.dedent(
    """
    networkTopologyDiscovery:
    - source: label
      enabled: true
      interval: 1h
      config:
        networkTopologyTypes:
          Fabric_A:
          - nodeLabel: spine
          - nodeLabel: leaf
          - nodeLabel: kubernetes.io/hostname
    """
)


def play(text: str = TEXT, **nodes: dict[str, str]) -> MemoryWorld:
    world = MemoryWorld()
    meta = {"name": CONFIG.name, "namespace": CONFIG.namespace}
    world.put(CONFIG_MAP, {"metadata": meta, "data": {"volcano-controller.conf": text}})
    for name, labels in nodes.items():
        world.put(NODE, {"metadata": {"name": name, "labels": labels}})
    return world


FABRIC: dict[str, dict[str, str]] = {
    "n1": {"leaf": "a", "spine": "s"},
    "n2": {"leaf": "a", "spine": "s"},
    "n3": {"leaf": "b", "spine": "s"},
    "n4": {"spine": "s"},
    "n5": {"leaf": "c"},
}


def settle(world: MemoryWorld) -> None:
    world.apply(CONTROLLER.decide(CONFIG, world))
    assert CONTROLLER.decide(CONFIG, world) == ()
    world.apply(NODE_COUNTS.decide(ALL, world))
    assert NODE_COUNTS.decide(ALL, world) == ()


def tree(world: MemoryWorld) -> dict[str, tuple[int, set[str]]]:
    """Return the tier and members of each HyperNode by label value."""
    value_of = {
        h["metadata"]["name"]: next(
            v for k, v in h["metadata"]["labels"].items() if k in ("leaf", "spine")
        )
        for h in world.listed(HYPER_NODE)
    }
    found = {}
    for h in world.listed(HYPER_NODE):
        names = {m["selector"]["exactMatch"]["name"] for m in h["spec"]["members"]}
        members = {value_of.get(name, name) for name in names}
        found[value_of[h["metadata"]["name"]]] = (h["spec"]["tier"], members)
    return found


def counts(world: MemoryWorld) -> dict[str, int]:
    return {
        h["metadata"]["labels"].get("leaf") or h["metadata"]["labels"]["spine"]: h.get(
            "status", {}
        ).get("nodeCount", 0)
        for h in world.listed(HYPER_NODE)
    }


def test_labels_of_nodes_make_a_tree() -> None:
    world = play(**FABRIC)
    settle(world)
    found = tree(world)
    assert {name: found[name] for name in ("a", "b", "c")} == {
        "a": (1, {"n1", "n2"}),
        "b": (1, {"n3"}),
        "c": (1, {"n5"}),
    }
    assert found["s"] == (2, {"a", "b"})
    assert counts(world) == {"a": 2, "b": 1, "c": 1, "s": 3}
    for hypernode in world.listed(HYPER_NODE):
        tier = hypernode["spec"]["tier"]
        name, label = hypernode["metadata"]["name"], hypernode["spec"]["tierName"]
        assert name.startswith(f"hypernode-fabric-a-tier{tier}-")
        assert label == {1: "leaf", 2: "spine"}[tier]
        assert hypernode["metadata"]["labels"]["volcano.sh/network-topology-source"] == "label"


def test_the_tree_follows_the_labels() -> None:
    world = play(**FABRIC)
    settle(world)
    world.put(NODE, {"metadata": {"name": "n3", "labels": {"leaf": "a", "spine": "s"}}})
    world.remove(Ref(NODE, "", "n5"))
    settle(world)
    assert tree(world) == {"a": (1, {"n1", "n2", "n3"}), "s": (2, {"a"})}
    assert counts(world) == {"a": 3, "s": 3}


def test_hypernodes_of_others_are_left_alone_but_counted() -> None:
    world = play(**FABRIC)
    member = {"type": "Node", "selector": {"regexMatch": {"pattern": "n[123]"}}}
    spec = {"tier": 1, "members": [member]}
    world.put(HYPER_NODE, {"metadata": {"name": "own", "labels": {"spine": "x"}}, "spec": spec})
    world.apply(CONTROLLER.decide(CONFIG, world))
    assert world.get(HYPER_NODE, "", "own")["spec"] == spec
    alone = play("", n1={}, n2={}, other={})
    alone.put(HYPER_NODE, {"metadata": {"name": "own", "labels": {"spine": "x"}}, "spec": spec})
    alone.apply(NODE_COUNTS.decide(ALL, alone))
    assert counts(alone) == {"x": 2}


def test_what_volcano_has_made_keeps_its_name() -> None:
    world = play(**FABRIC)
    labels = {"volcano.sh/network-topology-source": "label", "leaf": "a"}
    meta = {"name": "hypernode-fabric-a-tier1-x7k2p", "labels": labels}
    world.put(HYPER_NODE, {"metadata": meta, "spec": {"tier": 1, "members": []}})
    settle(world)
    assert len(world.listed(HYPER_NODE)) == 4
    assert tree(world)["a"] == (1, {"n1", "n2"})
    assert world.get(HYPER_NODE, "", meta["name"]) is not None


@pytest.mark.parametrize("text", ["", "other: 1", TEXT.replace("true", "false")])
def test_where_nobody_asks_nothing_is_touched(text: str) -> None:
    world = play(**FABRIC)
    settle(world)
    meta = {"name": CONFIG.name, "namespace": CONFIG.namespace}
    world.put(CONFIG_MAP, {"metadata": meta, "data": {"volcano-controller.conf": text}})
    assert CONTROLLER.decide(CONFIG, world) == ()
    world.remove(CONFIG)
    assert CONTROLLER.decide(CONFIG, world) == ()
    assert CONTROLLER.decide(Ref(CONFIG_MAP, "other", CONFIG.name), world) == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("Fabric_A", "A" * 21), "has more than 20 characters"),
        (("leaf", "spine"), "names a label twice"),
        (("nodeLabel: leaf", "label: leaf"), "list a nodeLabel for each tier"),
        (("source: label", "source: roce"), "source 'roce' is not known: use label or ufm"),
        (("source: label", "source: ufm"), "ufm: config.endpoint is missing: set it to the URL"),
        (("enabled: true", "enabled: true\n  x: ["), "is not one YAML document"),
    ],
)
def test_what_has_no_reading_is_told_and_changes_nothing(
    change: tuple[str, str], words: str
) -> None:
    text = TEXT.replace(*change)
    with pytest.raises(ConfigError, match=words):
        read_sources(text)
    world = play(text, **FABRIC)
    world.apply(CONTROLLER.decide(CONFIG, world))
    assert world.listed(HYPER_NODE) == []
    assert [event.reason for event in world.events] == ["InvalidTopologyDiscovery"]
    assert words in world.events[0].message


def test_signs_of_life_wake_nobody() -> None:
    before: dict[str, Any] = {"metadata": {"name": "n", "labels": {"leaf": "a"}}}
    after = {**before, "status": {"conditions": []}}
    for controller in (CONTROLLER, NODE_COUNTS):
        facet = controller.facets[NODE]
        assert facet(before) == facet(after)
        moved = {"metadata": {"name": "n", "labels": {"leaf": "b"}}}
        assert facet(before) != facet(moved)
