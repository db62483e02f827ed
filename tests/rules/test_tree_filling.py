"""Filling down a tree against giving crumbs one at a time to whoever comes first."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.rules.tree_filling import Kinds, Tree, fill_tree
from tests.rules.test_contract import examples

CRUMB = 1 / 200


@dataclass(eq=False)
class Part:
    """A department or a gang of the procedure of the paper."""

    weight: float
    past: tuple[float, ...]
    asks: tuple[float, ...] = ()
    above: Part | None = None
    below: list[Part] = field(default_factory=list)
    got: float = 0.0

    def has_all(self) -> bool:
        return self.got >= max(self.asks) - CRUMB / 2


def crumbs(top: Part, gangs: list[Part], stops) -> None:
    """Bhattacharya et al., algorithm 1: the least share first at every level, crumb by crumb."""

    def full(part: Part) -> bool:
        if part.asks:
            return part.has_all() or stops(part)
        return all(full(p) for p in part.below)

    def held(part: Part) -> np.ndarray:
        if part.asks:
            return part.got / max(part.asks) * np.array(part.asks)
        growing = [p for p in part.below if not full(p)]
        least = min((share(p) / p.weight for p in growing), default=0.0)
        total = np.array(part.past)
        for p in part.below:
            scale = least * p.weight / share(p) if p in growing and share(p) > 0 else 1.0
            total = total + scale * held(p)
        return total

    def share(part: Part) -> float:
        return float(held(part).max())

    while not full(top):
        at = top
        while not at.asks:
            at = min((p for p in at.below if not full(p)), key=lambda p: share(p) / p.weight)
        at.got += CRUMB


@st.composite
def trees(draw, *, past=False):
    """A tree with up to two departments of up to two queues, with up to two gangs each."""
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
    kinds = Kinds(
        home=np.array([nodes.index(g.above) for g in gangs]),
        mix=mix,
        sizes=tuple(np.array([max(g.asks)]) for g in gangs),
        floor=np.zeros(len(gangs)),
        use=mix.T,
        limit=np.ones(2),
    )
    return fill_tree(tree, kinds).tolist()


def agree(top: Part, gangs: list[Part]) -> None:
    found = filled(top, gangs)

    def stops(part: Part) -> bool:
        used = sum(g.got / max(g.asks) * np.array(g.asks) for g in gangs)
        more = np.array(part.asks) / max(part.asks) * CRUMB
        return bool(((more > 0) & (used + more > 1 + 1e-9)).any())

    crumbs(top, gangs, stops)
    assert found == pytest.approx([g.got for g in gangs], abs=12 * CRUMB)


@examples(12)
@given(trees())
def test_crumbs_given_to_whoever_comes_first_come_to_the_same(drawn):
    agree(*drawn)


@examples(12)
@given(trees(past=True))
def test_so_they_do_where_queues_have_used_something_before(drawn):
    agree(*drawn)
