from __future__ import annotations

from dataclasses import replace

import pytest

from optsched.cluster.selectors import NodeSelector, NodeTerm, Operator, Requirement
from optsched.cluster.snapshot import Claim, Volume
from optsched.plugins.accounting import Outcome
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.storage.volumes import VolumeFill
from optsched.problem.compile import compile_problem
from tests.support.engines import Bench
from tests.support.small import cluster, gang, node, shape

FULLER = ((0, 0), (100, 10))
EMPTIER = ((0, 10), (40, 8), (80, 4), (100, 0))


def volume(name: str, capacity: int, storage_class: str = "local", at: str = "") -> Volume:
    here = NodeSelector((NodeTerm((), (Requirement("metadata.name", Operator.IN, (at,)),)),))
    return Volume(name, storage_class, capacity, here if at else None)


@pytest.mark.parametrize(
    ("shape", "chosen", "points"),
    [
        (FULLER, [(5, 10)], 50),
        (FULLER, [(5, 10), (1, 90)], 6),
        (FULLER, [(0, 0)], 100),
        (FULLER, [(11, 10)], 100),
        (FULLER, [(1, 3)], 33),
        (EMPTIER, [(2, 10)], 90),
        (EMPTIER, [(5, 10)], 70),
        (EMPTIER, [(9, 10)], 20),
        (((10, 3), (20, 1)), [(0, 10)], 30),
        (((10, 3), (20, 1)), [(9, 10)], 10),
        # The points are 30 − ⌊20·3/10⌋, without subtracting one for the remainder of the division.
        (((10, 3), (20, 2)), [(13, 100)], 27),
        (((10, 3), (40, 2)), [(11, 100)], 30),
        (FULLER, [], 0),
    ],
)
def test_points_follow_the_shape(
    shape: tuple[tuple[int, int], ...], chosen: list[tuple[int, int]], points: int
) -> None:
    volumes = [(size, volume(f"v{i}", room)) for i, (size, room) in enumerate(chosen)]
    assert VolumeFill(shape).points(volumes) == points


def test_classes_count_alike() -> None:
    chosen = [(1, volume("a", 10, "x")), (6, volume("b", 10, "y")), (2, volume("c", 2, "y"))]
    assert VolumeFill(FULLER).points(chosen) == 38  # the mean of 10 and 66 points


def test_nodes_come_first_whose_volumes_fit_best() -> None:
    volumes = (volume("v0", 10, at="n0"), volume("v1", 20, at="n1"))
    claims = {"ns/c": Claim("ns/c", None, waits_for_consumer=True, size_bytes=10, volumes=volumes)}
    wanting = gang("g", ("w", 1, shape(1, claims=("ns/c",))), ("x", 1, shape(1)))
    nodes = [node("n0"), node("n1"), node("n2")]
    problem = compile_problem(replace(cluster(nodes, [wanting]), claims=claims))
    scores = [VolumeFill(FULLER, 2).class_score(problem, c) for c in range(2)]
    assert [None if found is None else found.tolist() for found in scores] == [[200, 100, 0], None]


def test_the_level_of_node_scores_contains_them() -> None:
    volumes = (volume("v0", 10, at="n0"), volume("v1", 20, at="n1"))
    claims = {"ns/c": Claim("ns/c", None, waits_for_consumer=True, size_bytes=10, volumes=volumes)}
    wanting = gang("g", ("w", 1, shape(1, claims=("ns/c",))))
    snapshot = replace(cluster([node("n1"), node("n0")], [wanting]), claims=claims)
    bench = Bench.of(snapshot, RuleSet.of(VolumeFill(FULLER, 2)), ("admission", "node-score"))
    [level] = [each for each in bench.levels if each.name == "node score"]
    placed = {
        where: level.value(Outcome(bench.problem, bench.decisions({"ns/g-w-0": where})))
        for where in ("n0", "n1")
    }
    assert placed == {"n0": 200, "n1": 100}
    assert bench.improved(bench.decisions({"ns/g-w-0": "n1"})).results[-1].value == 200
