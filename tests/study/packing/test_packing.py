"""Vector bin packing matches exhaustive search and the published optima."""

from __future__ import annotations

import pickle
import time
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest

from optsched.study.packing.packing_problem import (
    ItemKind,
    Items,
    RepeatedBins,
    VectorPacking,
    as_bin,
    wrong_with_bins,
)
from optsched.study.packing.patterns import (
    best_bins,
    every_bin,
    full_bins,
    greedy_packings,
    usual_scores,
)
from optsched.study.packing.solve_packing import (
    BOUND_MET,
    OUT_OF_TIME,
    quick_packing,
    solve_packing,
)
from tests.support.effort import EFFORT, num_examples
from tests.support.packing import Case, published
from tests.support.research import RESEARCH
from tests.support.shared import shared


def some(seed: int, most_kinds: int = 4, most: int = 2) -> VectorPacking:
    """Return a small random instance; every third seed also has negative sizes."""
    random = np.random.default_rng(seed)
    dimensions, num = int(random.integers(1, 4)), int(random.integers(1, most_kinds + 1))
    low = -2 if seed % 3 == 0 else 0
    sizes = {tuple(random.integers(low, 9, dimensions).tolist()) for _ in range(num)}
    kinds = tuple(ItemKind(s, int(random.integers(1, most + 1))) for s in sorted(sizes))
    return VectorPacking(f"random-{seed}", (8,) * dimensions, kinds)


def fewest(problem: VectorPacking) -> int:
    """Return the minimum number of bins, by exhaustive search over the remaining items."""
    items = Items.from_problem(problem)
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


@pytest.mark.parametrize("seed", range(num_examples(20)))
def test_as_good_as_trying_everything(seed: int) -> None:
    problem = some(seed)
    result = solve_packing(problem, time.monotonic, 20)
    assert wrong_with_bins(problem, result.bins) == []
    assert len(result.bins) == fewest(problem)
    assert result.bound <= len(result.bins)
    assert result.is_proved == (result.stopped == BOUND_MET)


@pytest.mark.parametrize("seed", range(num_examples(50)))
def test_pricing_is_as_good_as_trying_everything(seed: int) -> None:
    items = Items.from_problem(some(seed, 5, 3))
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


def fitting(items: Items) -> np.ndarray:
    """Return every nonempty set of items that fits into one bin."""
    every = np.array(list(product(*(range(int(n) + 1) for n in items.number))))[1:]
    return every[(every @ items.sizes <= items.capacity).all(axis=1)]


@pytest.mark.parametrize("seed", range(num_examples(50)))
def test_the_pool_is_every_bin_once(seed: int) -> None:
    items = Items.from_problem(some(seed, 5, 3))
    pool, expected = every_bin(items, lambda: False), fitting(items)
    found = [] if pool is None else [tuple(c) for c in pool.all_counts()]
    assert sorted(found) == sorted(map(tuple, expected.tolist()))


@pytest.mark.parametrize("seed", range(num_examples(30)))
def test_full_bins_are_those_with_little_waste(seed: int) -> None:
    items = Items.from_problem(some(seed, 6, 3))
    waste = np.random.default_rng(seed).integers(0, 3, len(items.capacity))
    pool, expected = full_bins(items, waste, 3, lambda: False), fitting(items)
    is_full = (items.capacity - expected @ items.sizes <= waste).all(axis=1)
    expected = expected[is_full & (expected.sum(axis=1) <= 3)]
    found = [] if pool is None else [tuple(c) for c in pool.all_counts()]
    assert sorted(found) == sorted(map(tuple, expected.tolist()))


@pytest.mark.parametrize("seed", range(num_examples(20)))
def test_a_pool_prices_as_the_tree_does(seed: int) -> None:
    items = Items.from_problem(some(seed, 5, 3))
    prices = np.random.default_rng(seed).integers(0, 50, len(items.number))
    pool = every_bin(items, lambda: False)
    if pool is None:
        assert not len(fitting(items))
        return
    found, tree = pool.best_bins(prices, 20, 5), best_bins(items, prices, 20, 5, lambda: False)
    assert (found.most, found.is_exact) == (tree.most, True)
    assert (found.bins @ items.sizes <= items.capacity).all()
    assert (found.bins @ prices > 20).all()


def test_a_pool_that_would_be_too_large_is_none() -> None:
    items = Items(np.ones((60, 1), np.int64), np.ones(60, np.int64), np.array([30]))
    assert every_bin(items, lambda: False) is None
    assert every_bin(Items.from_problem(some(1)), lambda: True) is None


def test_every_way_of_filling_is_a_packing() -> None:
    problem = some(5, 9, 9)
    scores = usual_scores(Items.from_problem(problem), 20, np.random.default_rng(0))
    for bins in greedy_packings(Items.from_problem(problem), scores):
        each = [as_bin(counts) for counts, copies in bins for _ in range(copies)]
        assert wrong_with_bins(problem, each) == []


@pytest.mark.parametrize(
    ("capacity", "sizes", "bins"), [((7,), (2,), 1_666_667), ((9, 9**9), (0, 3), 1)]
)
def test_five_million_items_of_a_kind_are_packed_by_copies(
    capacity: tuple[int, ...], sizes: tuple[int, ...], bins: int
) -> None:
    problem = VectorPacking("many", capacity, (ItemKind(sizes, 5_000_000),))
    result = quick_packing(problem)
    assert len(result.bins) == bins
    assert wrong_with_bins(problem, result.bins) == []


EIGHT = (
    (7, 21, 37),
    (30, 55, 58),
    (35, 27, 42),
    (37, 13, 23),
    (53, 11, 44),
    (39, 50, 56),
    (14, 24, 11),
    (9, 59, 48),
)


def test_five_million_items_of_each_kind_are_packed_within_the_time_limit() -> None:
    """The greedy packings are not optimal, so columns are generated and used millions of times."""
    kinds = tuple(ItemKind(sizes, 5_000_000) for sizes in EIGHT)
    problem = VectorPacking("many", (100, 100, 100), kinds)
    assert not quick_packing(problem).is_proved
    began = time.process_time()
    result = solve_packing(problem, time.process_time, 4)
    assert time.process_time() - began < 5
    assert result.is_proved
    assert wrong_with_bins(problem, result.bins) == []
    assert len(pickle.dumps(result)) < 10_000


def test_more_items_than_fit_into_memory_are_packed() -> None:
    kinds = (ItemKind((31, 5), 10**12), ItemKind((7, 42), 10**12 - 1), ItemKind((20, -3), 10**11))
    problem = VectorPacking("most", (100, 100), kinds)
    result = solve_packing(problem, time.process_time, 0.5)
    assert wrong_with_bins(problem, result.bins) == []
    assert result.bound <= len(result.bins)


@pytest.mark.filterwarnings("error")
def test_items_of_no_size_fill_one_bin() -> None:
    assert len(quick_packing(VectorPacking("x", (8, 8), (ItemKind((0, 0), 9),))).bins) == 1


def test_copies_are_a_sequence_of_bins() -> None:
    one, other = ((0, 2),), ((0, 1), (1, 1))
    bins, each = RepeatedBins(((one, 2), (other, 1))), (one, one, other)
    assert (len(bins), tuple(bins), bins[-1], bins[1:]) == (3, each, other, each[1:])
    assert [bins[i] for i in range(3)] == list(each)
    assert bins.index(other) == 2
    for outside in (3, -4):
        with pytest.raises(IndexError):
            bins[outside]


def test_copies_are_the_bins_that_single_steps_would_fill() -> None:
    problem = some(5, 9, 9)
    scores = usual_scores(Items.from_problem(problem), 20, np.random.default_rng(0))
    for bins in greedy_packings(Items.from_problem(problem), scores):
        tables = [tuple(counts.tolist()) for counts, _ in bins]
        assert all(a != b for a, b in pairwise(tables))


def test_an_item_that_fits_nowhere() -> None:
    problem = VectorPacking("x", (8,), (ItemKind((9,), 1), ItemKind((-5,), 1)))
    with pytest.raises(ValueError, match=r"x: an item of \(9,\) does not fit into an empty bin"):
        solve_packing(problem, time.monotonic)


def test_without_time_there_is_a_packing_all_the_same() -> None:
    problem = some(1, most_kinds=40, most=5)
    result = solve_packing(problem, time.monotonic, 0)
    assert wrong_with_bins(problem, result.bins) == []
    assert (result.stopped, result.is_proved) == (OUT_OF_TIME, False)


# --- published instances -------------------------------------------------------------------------


def cases(family: str) -> list[Case]:
    """Return the published instances of a family with a known optimum, smaller instances first."""
    known = [c for c in published(shared("traces", "vbp"), family) if c.optimum is not None]
    return sorted(known, key=lambda c: (c.problem.num_items, c.problem.name))


def tally(chosen: list[Case]) -> tuple[float, float]:
    """Return the fractions of the instances whose optimum is found and proved.

    Each instance gets 120 s of one core.
    """
    found = proved = 0
    for case in chosen:
        result = solve_packing(case.problem, time.process_time, 120)
        assert result.bound <= case.optimum <= len(result.bins)
        found += len(result.bins) == case.optimum
        proved += result.is_proved
        print(case.problem.name, case.optimum, len(result.bins), result.bound, result.stopped)
    return found / len(chosen), proved / len(chosen)


STEP = 30 if EFFORT >= 1 else 90
"""Of the small published instances one in so many is solved."""


@pytest.mark.research
def test_optima_of_panigrahy() -> None:
    """The best published heuristics find 63 % of these optima."""
    known = cases("Panigrahy")
    assert len(known) == 1200
    few = [c for c in known if c.problem.num_items <= 60]
    found, proved = tally(known[7::10] if RESEARCH == "full" else few[7::STEP])
    assert found >= 0.8
    assert proved >= 0.65


@pytest.mark.research
def test_optima_of_triplets() -> None:
    """The best published heuristics find none of these optima."""
    known = cases("Triplet")
    small = [c for c in known if c.problem.num_items <= 120]
    assert len(small) == 120
    found, _ = tally(small[3::10] if RESEARCH == "full" else small[3::40])
    assert found >= 0.8


@pytest.mark.research
@pytest.mark.skipif(RESEARCH != "full", reason="large ones with OPTSCHED_RESEARCH=full")
def test_optima_of_large_triplets() -> None:
    large = [c for c in cases("Triplet") if c.problem.num_items > 120]
    assert len(large) == 120
    found, _ = tally(large[3::10])
    assert found >= 0.8
