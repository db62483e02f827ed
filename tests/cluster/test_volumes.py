from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from optsched.cluster.selectors import NodeSelector, NodeTerm, Operator, Requirement
from optsched.cluster.snapshot import Claim, Volume
from optsched.cluster.volumes import VolumeAssignment, VolumeRequest, assign_volumes

NAMES = ("a", "b", "c", "d")


def on(*nodes: str) -> NodeSelector:
    return NodeSelector((NodeTerm((), (Requirement("metadata.name", Operator.IN, nodes),)),))


def selects(selector: NodeSelector, node: str) -> bool:
    return selector.matches(node, {})


def waits(key: str, *volumes: Volume, size: int = 1, made: bool = False) -> Claim:
    return Claim(
        key, waits_for_consumer=True, size_bytes=size, provisions=made, volumes=tuple(volumes)
    )


SMALL, LARGE = Volume("small", capacity_bytes=1), Volume("large", capacity_bytes=9)


def given_out(*claims: Claim, **used_on: str) -> tuple[dict[str, str], set[str]]:
    nodes = {c.key: (used_on.get(c.key, "n"),) for c in claims}
    holders = assign_volumes({c.key: c for c in claims}, nodes, selects)
    return {claim: volume for volume, claim in holders.claim_by_volume.items()}, holders.short


def test_the_smallest_volume_that_does_is_chosen_by_small_claims_first():
    claims = (waits("x", SMALL, LARGE, size=1), waits("w", LARGE, size=9))
    assert given_out(*claims) == ({"x": "small", "w": "large"}, set())


def test_claims_make_way_for_one_another():
    claims = (waits("x", SMALL, LARGE, size=1), waits("y", SMALL, size=2))
    assert given_out(*claims) == ({"x": "large", "y": "small"}, set())


def test_who_can_have_one_made_leaves_volumes_to_others_and_takes_what_is_left():
    claims = (waits("x", SMALL, made=True), waits("y", SMALL, size=2))
    assert given_out(*claims) == ({"y": "small"}, set())
    assert given_out(claims[0]) == ({"x": "small"}, set())


def test_a_volume_has_to_be_in_reach_of_all_nodes():
    far = Volume("far", nodes=on("m"))
    assert given_out(waits("x", far)) == ({}, {"x"})
    assert given_out(waits("x", far), x="m") == ({"x": "far"}, set())
    both = assign_volumes({"x": waits("x", far)}, {"x": ("m", "n")}, selects)
    assert both.short == {"x"}


def test_who_leaves_makes_room_for_who_was_short():
    holders = VolumeAssignment()
    assert holders.assign(VolumeRequest("x", ("v",), is_made=False))
    assert not holders.assign(VolumeRequest("y", ("v",), is_made=False))
    assert holders.short == {"y"}
    holders.remove("x")
    assert (holders.short, holders.volume_by_claim.get("y", "")) == (set(), "v")


ASKS = st.lists(st.lists(st.sampled_from(NAMES), max_size=3, unique=True), max_size=4)


def fits(asks: list[list[str]]) -> bool:
    """Return whether all requests can have different volumes, by exhaustive search."""
    ways = permutations(NAMES, len(asks))
    return any(all(v in ask for v, ask in zip(way, asks, strict=True)) for way in ways)


@given(ASKS)
def test_all_get_one_wherever_that_can_be(asks: list[list[str]]):
    holders = VolumeAssignment()
    for number, ask in enumerate(asks):
        holders.assign(VolumeRequest(str(number), tuple(ask), is_made=False))
    assert (not holders.short) == fits(asks)
    assert all(v in asks[int(claim)] for v, claim in holders.claim_by_volume.items())


@given(ASKS.filter(bool))
def test_what_is_open_to_a_claim_is_what_leaves_all_others_content(asks: list[list[str]]):
    *others, mine = asks
    if not fits(others):
        return
    holders = VolumeAssignment()
    for number, ask in enumerate(others):
        holders.assign(VolumeRequest(str(number), tuple(ask), is_made=False))
    open_to_me = [v for v in mine if fits([*others, [v]])]
    assert holders.usable_volumes("me", mine) == open_to_me
