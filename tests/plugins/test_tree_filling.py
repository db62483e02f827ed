"""Tests of filling a tree of queues, compared with many small increments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from optsched.plugins.shares.tree_filling import GangClasses, Tree, fill_tree
from tests.plugins.test_contract import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

CRUMB = 1 / 500
AGREE = 0.06


@dataclass(eq=False)
class Part:
    """A parent queue or a gang in the paper's procedure."""

    weight: float
    past: tuple[float, float]
    asks: tuple[float, ...] = ()
    above: Part | None = None
    below: list[Part] = field(default_factory=list)
    got: float = 0.0
    held: tuple[float, float] = (0.0, 0.0)
    is_full: bool = False
    turn: float = 0.0
    clock: float = 0.0

    @property
    def share(self) -> float:
        return max(self.held)

    @property
    def mix(self) -> tuple[float, float]:
        first, second = (ask / max(self.asks) for ask in self.asks)
        return first, second


def crumbs(top: Part, gangs: list[Part]) -> list[float]:
    """Apply algorithm 1 of Bhattacharya et al.: the least share first at every level.

    The increments are small. Parts with nearly equal shares take turns by weight. Otherwise the
    order could decide between two parts whose shares stay equal, because another resource dominates
    them.
    """
    upwards = list(_upwards(top))
    for part in upwards:
        part.got = part.turn = part.clock = 0.0
    used = [0.0, 0.0]
    while True:
        for part in upwards:
            _look(part, used)
        if top.is_full:
            return [gang.got for gang in gangs]
        at = top
        while not at.asks:
            at = _next(at)
        at.got += CRUMB
        used = [u + m * CRUMB for u, m in zip(used, at.mix, strict=True)]


def _upwards(part: Part) -> Iterator[Part]:
    for below in part.below:
        yield from _upwards(below)
    yield part


def _look(part: Part, used: list[float]) -> None:
    """Update the allocation of a part and its descendants, and whether they can grow."""
    if part.asks:
        pairs = zip(part.mix, used, strict=True)
        is_out = any(m > 0 and u + m * CRUMB > 1 + 1e-9 for m, u in pairs)
        part.is_full = is_out or part.got >= max(part.asks) - CRUMB / 2
        part.held = (part.got * part.mix[0], part.got * part.mix[1])
        return
    part.is_full = all(p.is_full for p in part.below)
    least = min((p.share / p.weight for p in part.below if not p.is_full), default=0.0)
    first, second = part.past
    for p in part.below:
        scale = least * p.weight / p.share if not p.is_full and p.share > 0 else 1.0
        first, second = first + scale * p.held[0], second + scale * p.held[1]
    part.held = (first, second)


def _next(part: Part) -> Part:
    growing = [p for p in part.below if not p.is_full]
    least = min(p.share / p.weight for p in growing)
    # Shares of parent queues are sums, so their unevenness adds up.
    uneven = 2 * CRUMB if part.above else 12 * CRUMB
    equal = [p for p in growing if p.share / p.weight <= least + uneven]
    found = min(equal, key=lambda p: max(p.turn, part.clock))
    part.clock = max(found.turn, part.clock)
    found.turn = part.clock + 1 / found.weight
    return found


@st.composite
def trees(draw, *, past=False):
    """Draw a tree of up to two parent queues, two queues each, and two gangs each."""
    some = st.sampled_from([0.0, 0.0, 0.1, 0.3])
    history = st.tuples(some, some) if past else st.just((0.0, 0.0))
    asks = st.sampled_from(
        [(0.5, 0.0), (0.0, 0.5), (1.0, 0.0), (0.2, 0.2), (0.5, 0.25), (0.0, 1.0)]
    )
    top = Part(1.0, (0.0, 0.0))
    gangs: list[Part] = []
    for _ in range(draw(st.integers(1, 3))):
        department = Part(draw(st.sampled_from([1.0, 1.0, 2.0])), (0.0, 0.0), above=top)
        top.below.append(department)
        for _ in range(draw(st.integers(1, 2))):
            queue = Part(draw(st.sampled_from([1.0, 1.0, 3.0])), draw(history), above=department)
            department.below.append(queue)
            for _ in range(draw(st.integers(1, 2))):
                queue.below.append(Part(1.0, (0.0, 0.0), draw(asks), above=queue))
                gangs.append(queue.below[-1])
    return top, gangs


def filled(top: Part, gangs: list[Part]) -> list[float]:
    nodes, parents = [top], [-1]
    for at in nodes:
        for part in at.below:
            if not part.asks:
                parents.append(nodes.index(at))
                nodes.append(part)
    tree = Tree(
        np.array(parents),
        np.array([n.weight for n in nodes]),
        np.array([n.past for n in nodes]),
    )
    mix = np.array([g.asks for g in gangs]) / np.array([[max(g.asks)] for g in gangs])
    kinds = GangClasses(
        home=np.array([nodes.index(g.above) for g in gangs]),
        mix=mix,
        sizes=tuple(np.array([max(g.asks)]) for g in gangs),
        floor=np.zeros(len(gangs)),
        use=mix.T,
        limit=np.ones(2),
    )
    return fill_tree(tree, kinds).tolist()


def agree(top: Part, gangs: list[Part]) -> None:
    """Compare the filling with small increments where those converge.

    Two tied parent queues may come next alone or together while other resources are filled. In that
    case one increment can decide all further increments. About one in a thousand such trees passes
    the test for ties, so draws are fixed.
    """
    expected = crumbs(top, gangs)
    queues = [queue for department in top.below for queue in department.below]
    pasts = [queue.past for queue in queues]
    for change in (-0.03, 0.03) if any(map(any, pasts)) else ():
        for number, (queue, (first, second)) in enumerate(zip(queues, pasts, strict=True), 1):
            queue.past = (first * (1 + change * number), second * (1 + change * number))
        assume(crumbs(top, gangs) == pytest.approx(expected, abs=AGREE))
    for queue, past in zip(queues, pasts, strict=True):
        queue.past = past
    assert filled(top, gangs) == pytest.approx(expected, abs=AGREE)


@settings(examples(12), derandomize=True)
@given(trees())
def test_crumbs_given_to_whoever_comes_first_come_to_the_same(drawn):
    agree(*drawn)


@settings(examples(12), derandomize=True)
@given(trees(past=True))
def test_so_they_do_where_queues_have_used_something_before(drawn):
    agree(*drawn)


def tree(*departments: tuple[float, list[tuple[tuple[float, float], tuple[float, float]]]]):
    """Return a tree of weighted parent queues; each queue has a past usage and one gang."""
    top = Part(1.0, (0.0, 0.0))
    for weight, queues in departments:
        department = Part(weight, (0.0, 0.0), above=top)
        top.below.append(department)
        for past, asks in queues:
            queue = Part(1.0, past, above=department)
            department.below.append(queue)
            queue.below.append(Part(1.0, (0.0, 0.0), asks, above=queue))
    gangs = [g for department in top.below for queue in department.below for g in queue.below]
    return top, gangs


def test_departments_that_tie_share_what_does_not_change_their_shares():
    """Both parent queues have used 0.3 of the first resource, and each gets half of the second."""
    queues = [((0.3, 0.0), (0.0, 1.0))]
    top, gangs = tree((1.0, queues), (1.0, queues))
    assert filled(top, gangs) == pytest.approx([0.5, 0.5])
    assert crumbs(top, gangs) == pytest.approx([0.5, 0.5], abs=AGREE)


def test_queues_that_tie_with_other_pasts_grow_together():
    """One queue has used the first resource and requests the second, and the other vice versa."""
    department = [((0.3, 0.0), (0.0, 1.0)), ((0.0, 0.3), (0.5, 0.0))]
    top, gangs = tree((1.0, department), (1.0, [((0.0, 0.0), (1.0, 0.0))]))
    expected = [1.0, 0.35, 0.65]
    assert filled(top, gangs) == pytest.approx(expected)
    assert crumbs(top, gangs) == pytest.approx(expected, abs=AGREE)
