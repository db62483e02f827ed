"""HyperNodes of a fabric that UFM manages."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.api.kinds import CONFIG_MAP, HYPER_NODE, Ref
from optsched.controllers.effects import Again, Fabric, FabricAnswer
from optsched.controllers.hypernode import ConfigError, Discovery, read_sources
from optsched.controllers.ufm import (
    UfmError,
    fabric_hypernodes,
    find_invalid_hosts,
    leaf_groups,
    read_links,
)
from tests.support.memory import MemoryWorld

CONFIG = Ref(CONFIG_MAP, "volcano-system", "volcano-controller-configmap")
CONTROLLER = Discovery().controller
TEXT = textwrap.dedent(
    """
    networkTopologyDiscovery:
    - source: roce
      enabled: false
    - source: ufm
      enabled: true
      interval: 10m
      credentials:
        secretRef:
          name: ufm-credentials
          namespace: volcano-system
      config:
        endpoint: https://ufm-server:8080/
        insecureSkipVerify: true
    """
)
FABRIC = Fabric("https://ufm-server:8080", ("volcano-system", "ufm-credentials"), verifies=False)
LINKS = (("n1", "s1"), ("n1", "s2"), ("n2", "s2"), ("n3", "s3"), ("n4", "s3"))


def port(host: object, switch: object, description: str = "Computer IB Port") -> dict[str, Any]:
    return {"system_name": host, "peer_node_name": switch, "description": description, "tier": 1}


def members(hypernodes: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    return {
        name: [m["selector"]["exactMatch"]["name"] for m in each["spec"]["members"]]
        for name, each in hypernodes.items()
    }


# --- what UFM says -------------------------------------------------------------------------------


def test_ports_of_hosts_are_links_and_nothing_else_is() -> None:
    ports = [
        port("n2", "s1"),
        port("n1", "s1"),
        port("n1", "s1"),
        port("s1", "spine", "Switch IB Port"),
        port("", "s1"),
        port("n3", None),
        {"description": "Computer IB Port"},
        "noise",
    ]
    assert read_links(json.dumps(ports).encode()) == (("n1", "s1"), ("n2", "s1"))


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"<html>", "is not JSON"), (b'{"ports": []}', "a list of ports"), (b"\xff", "is not JSON")],
)
def test_what_is_no_list_of_ports_is_told(body: bytes, words: str) -> None:
    with pytest.raises(UfmError, match=words):
        read_links(body)


# --- what becomes of it --------------------------------------------------------------------------


def test_switches_with_a_host_in_common_make_one_leaf() -> None:
    assert leaf_groups(LINKS) == (("s1", ("n1", "n2")), ("s3", ("n3", "n4")))


def test_leaves_are_below_a_spine() -> None:
    found = fabric_hypernodes(LINKS, ())
    assert {name: each["spec"]["tier"] for name, each in found.items() if name == "spine-hn"} == {
        "spine-hn": 2
    }
    hosts = members(found)
    leaves = sorted(hosts.keys() - {"spine-hn"})
    assert hosts.pop("spine-hn") == leaves
    assert sorted(hosts.values()) == [["n1", "n2"], ["n3", "n4"]]
    assert all(name.startswith("leaf-hn-") for name in leaves)
    labels = {"volcano.sh/network-topology-source": "ufm"}
    assert all(each["metadata"]["labels"] == labels for each in found.values())


def test_leaves_keep_the_names_that_most_of_their_nodes_know() -> None:
    before = [
        {**each, "metadata": {**each["metadata"], "name": new}}
        for each, new in zip(
            [fabric_hypernodes([link], ())[name] for link, name in named(("n1", "s"), ("n3", "s"))],
            ["leaf-hn-0", "leaf-hn-1"],
            strict=True,
        )
    ]
    for each in before:
        assert each["metadata"]["name"] in ("leaf-hn-0", "leaf-hn-1")
    found = members(fabric_hypernodes(LINKS, before))
    assert found["leaf-hn-0"] == ["n1", "n2"]
    assert found["leaf-hn-1"] == ["n3", "n4"]


def named(*links: tuple[str, str]) -> list[tuple[tuple[str, str], str]]:
    """Return links that are alone in a fabric, each with the name of its leaf."""
    return [
        (link, next(n for n in fabric_hypernodes([link], ()) if n != "spine-hn")) for link in links
    ]


def test_hosts_that_can_be_no_nodes_are_left_out() -> None:
    links = (*LINKS, ("MT1111 ConnectX7", "s1"), ("x" * 254, "s1"))
    assert find_invalid_hosts(links) == ("MT1111 ConnectX7", "x" * 254)
    assert members(fabric_hypernodes(links, ())) == members(fabric_hypernodes(LINKS, ()))


@given(
    st.lists(
        st.tuples(st.sampled_from(["n1", "n2", "n3", "n4"]), st.sampled_from(["a", "b", "c"]))
    ),
    st.randoms(use_true_random=False),
)
def test_each_host_is_in_one_leaf_whatever_the_order(links: list[Any], chance: Any) -> None:
    found = fabric_hypernodes(links, ())
    shuffled = list(links)
    chance.shuffle(shuffled)
    assert fabric_hypernodes(shuffled, ()) == found
    hosts = members(found)
    hosts.pop("spine-hn", None)
    listed = [host for each in hosts.values() for host in each]
    assert sorted(listed) == sorted({host for host, _ in links})
    assert fabric_hypernodes(links, found.values()) == found


# --- the configuration ---------------------------------------------------------------------------


def test_the_configuration_is_volcano_s() -> None:
    found = read_sources(TEXT)
    assert (found.fabric, found.interval_ms, found.types) == (FABRIC, 600_000, None)
    plain = TEXT.replace("https://", "").replace("      namespace: volcano-system\n", "")
    plain = plain.replace("  interval: 10m\n", "").replace("Verify: true", "Verify: false")
    found = read_sources(plain, "own")
    assert found.fabric == Fabric("https://ufm-server:8080", ("own", "ufm-credentials"))
    assert found.interval_ms == 3_600_000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("endpoint: https://ufm-server:8080/", "endpoint: "), "config.endpoint is missing"),
        (("https://", "ftp://"), "is neither https nor http"),
        (("namespace: volcano-system", "namespace: other"), "read only Secrets of volcano-system"),
        (("name: ufm-credentials", "key: x"), "credentials.secretRef.name is missing"),
        (("10m", "soon"), "interval"),
        (("10m", "1s"), "is shorter than 10 seconds"),
    ],
)
def test_a_configuration_without_a_reading_is_told(change: tuple[str, str], words: str) -> None:
    text = TEXT.replace(*change)
    with pytest.raises(ConfigError, match=words):
        read_sources(text)
    world = play(text)
    world.apply(CONTROLLER.decide(CONFIG, world))
    assert [event.reason for event in world.events] == ["InvalidTopologyDiscovery"]
    assert world.asked_fabrics == []


# --- discovery -----------------------------------------------------------------------------------


def play(text: str = TEXT) -> MemoryWorld:
    world = MemoryWorld()
    meta = {"name": CONFIG.name, "namespace": CONFIG.namespace}
    world.put(CONFIG_MAP, {"metadata": meta, "data": {"volcano-controller.conf": text}})
    return world


def hear(world: MemoryWorld, *links: tuple[str, str], problem: str = "") -> None:
    world.fabrics[FABRIC] = FabricAnswer(world.now_ms, links, problem)


def settle(world: MemoryWorld) -> list[str]:
    """Reconcile twice, and return the names of the HyperNodes."""
    for _ in range(2):
        world.agains.clear()
        world.apply(CONTROLLER.decide(CONFIG, world))
    return sorted(h["metadata"]["name"][:8] for h in world.listed(HYPER_NODE))


def test_it_is_asked_when_it_is_time() -> None:
    world = play()
    world.apply(CONTROLLER.decide(CONFIG, world))
    assert (world.asked_fabrics, world.agains) == ([FABRIC], [Again(0.0)])
    hear(world, *LINKS)
    world.asked_fabrics.clear()
    assert settle(world) == ["leaf-hn-", "leaf-hn-", "spine-hn"]
    assert (world.asked_fabrics, world.agains) == ([], [Again(600.0)])
    world.passes(600)
    settle(world)
    assert set(world.asked_fabrics) == {FABRIC}


def test_hypernodes_follow_the_fabric() -> None:
    world = play()
    hear(world, *LINKS)
    settle(world)
    hear(world, *LINKS[:3])
    assert settle(world) == ["leaf-hn-", "spine-hn"]
    spine = world.get(HYPER_NODE, "", "spine-hn")
    assert spine is not None
    world.remove(Ref(HYPER_NODE, "", "spine-hn"))
    assert settle(world) == ["leaf-hn-", "spine-hn"]


@pytest.mark.parametrize(
    ("links", "problem", "words"),
    [
        ((), "https://ufm-server:8080: it answers 503", "it answers 503"),
        ((), "", "lists no host with a port connected to a switch"),
    ],
)
def test_without_an_answer_all_stays_and_it_is_asked_again_soon(
    links: tuple[tuple[str, str], ...], problem: str, words: str
) -> None:
    world = play()
    hear(world, *LINKS)
    settle(world)
    hear(world, *links, problem=problem)
    assert settle(world) == ["leaf-hn-", "leaf-hn-", "spine-hn"]
    assert {event.reason for event in world.events} == {"TopologyNotDiscovered"}
    assert words in world.events[-1].message
    assert world.agains == [Again(60.0 if problem else 600.0)]


def test_a_hypernode_of_somebody_else_is_not_touched() -> None:
    world = play()
    spec = {"tier": 3, "members": []}
    world.put(HYPER_NODE, {"metadata": {"name": "spine-hn"}, "spec": spec})
    hear(world, *LINKS)
    assert settle(world) == ["spine-hn"]
    assert "HyperNode spine-hn exists but" in world.events[-1].message


def test_hosts_that_are_passed_over_are_told() -> None:
    world = play()
    hear(world, *LINKS, ("MT 1", "s1"))
    assert settle(world) == ["leaf-hn-", "leaf-hn-", "spine-hn"]
    assert [e.reason for e in world.events][-1] == "HostsPassedOver"
    assert "1 invalid host names, such as 'MT 1'" in world.events[-1].message
