"""Vector bin packing: as good as trying everything, and as the published optima."""

from __future__ import annotations

import time
from functools import cache
from itertools import product

import numpy as np
import pytest

from optsched.domain.packing import ItemKind, VectorPacking, wrong_with_bins
from optsched.engines.packing.filling import packings, usual_scores
from optsched.engines.packing.items import Items, as_bin
from optsched.engines.packing.pricing import best_bins
from optsched.engines.packing.solve import BOUND_MET, OUT_OF_TIME, solve_packing
from tests.support.effort import EFFORT
from tests.support.packing import Case, published
from tests.support.research import RESEARCH
from tests.support.shared import shared


def some(seed: int, most_kinds: int = 4, most: int = 2) -> VectorPacking:
    """A small instance; some have sizes below zero."""
    random = np.random.default_rng(seed)
    dimensions, num = int(random.integers(1, 4)), int(random.integers(1, most_kinds + 1))
    low = -2 if seed % 3 == 0 else 0
    sizes = {tuple(random.integers(low, 9, dimensions).tolist()) for _ in range(num)}
    kinds = tuple(ItemKind(s, int(random.integers(1, most + 1))) for s in sorted(sizes))
    return VectorPacking(f"random-{seed}", (8,) * dimensions, kinds)


def fewest(problem: VectorPacking) -> int:
    """By trying every bin for what is left."""
    items = Items.of(problem)
    every = np.array(list(product(*(range(int(n) + 1) for n in items.number))))[1:]
    fit = every[(every @ items.sizes <= items.capacity).all(axis=1)]

    @cache
    def bins(left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        first = next(k for k, n in enumerate(left) if n)
        here = fit[(fit[:, first] > 0) & (fit <= left).all(axis=1)]
        return 1 + min(bins(tuple((np.array(left) - b).tolist())) for b in here)

    return bins(tuple(items.number.tolist()))


@pytest.mark.parametrize("seed", range(20 * EFFORT))
def test_as_good_as_trying_everything(seed: int) -> None:
    problem = some(seed)
    result = solve_packing(problem, time.monotonic, 20)
    assert wrong_with_bins(problem, result.bins) == []
    assert len(result.bins) == fewest(problem)
    assert result.bound <= len(result.bins)
    assert result.is_proved == (result.stopped == BOUND_MET)


@pytest.mark.parametrize("seed", range(50 * EFFORT))
def test_pricing_is_as_good_as_trying_everything(seed: int) -> None:
    items = Items.of(some(seed, 5, 3))
    prices = np.random.default_rng(seed).integers(0, 50, len(items.number))
    every = np.array(list(product(*(range(int(n) + 1) for n in items.number))))
    worth = (every @ prices)[(every @ items.sizes <= items.capacity).all(axis=1)]
    above = int(worth.max()) // 2
    found = best_bins(items, prices, above, 5, lambda: False)
    assert found.is_exact
    assert found.most == max(int(worth.max()), above)
    assert (found.bins @ items.sizes <= items.capacity).all()
    assert (found.bins <= items.number).all()
    if worth.max() > above:
        assert int(found.bins[0] @ prices) == worth.max()


def test_every_way_of_filling_is_a_packing() -> None:
    problem = some(5, 9, 9)
    scores = usual_scores(Items.of(problem), 20, np.random.default_rng(0))
    for bins in packings(Items.of(problem), scores):
        assert wrong_with_bins(problem, [as_bin(counts) for counts in bins]) == []


def test_an_item_that_fits_nowhere() -> None:
    problem = VectorPacking("x", (8,), (ItemKind((9,), 1), ItemKind((-5,), 1)))
    with pytest.raises(ValueError, match=r"x: an item of \(9,\) fits into no empty bin"):
        solve_packing(problem, time.monotonic)


def test_without_time_there_is_a_packing_all_the_same() -> None:
    case = next(c for c in cases("Panigrahy") if c.problem.name == "class7_60_3_1")
    result = solve_packing(case.problem, time.monotonic, 0)
    assert wrong_with_bins(case.problem, result.bins) == []
    assert (result.stopped, result.is_proved) == (OUT_OF_TIME, False)


# --- published instances -------------------------------------------------------------------------


def cases(family: str) -> list[Case]:
    """Those with a known optimum, smaller ones first."""
    known = [c for c in published(shared("traces", "vbp"), family) if c.optimum is not None]
    return sorted(known, key=lambda c: (c.problem.num_items, c.problem.name))


def tally(chosen: list[Case]) -> tuple[float, float]:
    """Parts of the instances whose optimum is found, and proved, within 60 s each."""
    clock = time.monotonic if RESEARCH == "full" else time.process_time
    found = proved = 0
    for case in chosen:
        result = solve_packing(case.problem, clock, 60)
        assert result.bound <= case.optimum <= len(result.bins)
        found += len(result.bins) == case.optimum
        proved += result.is_proved
        print(case.problem.name, case.optimum, len(result.bins), result.bound, result.stopped)
    return found / len(chosen), proved / len(chosen)


@pytest.mark.research
def test_optima_of_panigrahy() -> None:
    """The best published heuristics find 63 %."""
    known = cases("Panigrahy")
    assert len(known) == 1200
    few = [c for c in known if c.problem.num_items <= 60]
    found, proved = tally(known[7::10] if RESEARCH == "full" else few[7::30])
    assert found >= 0.8
    assert proved >= 0.65


@pytest.mark.research
def test_optima_of_triplets() -> None:
    """The best published heuristics find none."""
    small = [c for c in cases("Triplet") if c.problem.num_items <= 120]
    assert len(small) == 120
    found, _ = tally(small[3::10] if RESEARCH == "full" else small[3:60:30])
    assert found >= 0.8
