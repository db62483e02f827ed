"""Tests of the instances that a seed generates."""

from __future__ import annotations

import pytest

from optsched.formats.files.yaml_text import Document, read_yaml
from optsched.formats.snapshots.assembly import assemble
from optsched.study.instances.gang_instances import Chance
from optsched.study.instances.instance_families import FAMILIES, Recipe, RecipeError
from optsched.study.packing.vbp import parse_vbp

SMALL = {
    "gangs-homogeneous": {"nodes": 3},
    "gangs-fragmented": {"nodes": 4},
    "queues-hierarchical": {"nodes": 3, "departments": 2, "teams": 2},
    "topology": {"spines": 2, "racks": 2, "nodes": 2},
    "victims": {"nodes": 4, "waiting": 3, "queues": 2},
    "heterogeneous": {"gpu_nodes": 2, "cpu_nodes": 2, "gangs": 4},
    "gpus-shared": {"nodes": 2, "cards": 2},
    "vector-packing": {"items": 9, "kinds": 4},
    "vector-packing-cut": {"bins": 3, "pieces": 3},
    "infeasible": {"case": "apart", "nodes": 4},
}
CLUSTERS = [f for f in SMALL if not f.startswith("vector")]


def snapshot_of(recipe):
    (document,) = read_yaml(recipe.text())
    assert isinstance(document, Document)
    read = assemble(document.value["items"])
    assert not read.problems
    return read.snapshot


def test_every_family_is_tried():
    assert SMALL.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", SMALL)
def test_the_seed_decides_and_nothing_else(family):
    recipe = Recipe(family, "x", 3, SMALL[family])
    assert recipe.text() == recipe.text()
    assert recipe.text() != Recipe(family, "x", 4, SMALL[family]).text()


@pytest.mark.parametrize("family", CLUSTERS)
def test_manifests_are_read_without_a_word(family):
    snapshot = snapshot_of(Recipe(family, "x", 3, SMALL[family]))
    assert snapshot.nodes
    assert any(not task.node for gang in snapshot.gangs for task in gang.tasks)


def test_nobody_holds_more_than_a_node_has():
    snapshot = snapshot_of(Recipe("victims", "x", 3, SMALL["victims"]))
    for node in snapshot.nodes:
        held = sum(dict(t.shape.request)["nvidia.com/gpu"] for t in node.residents)
        assert held == node.offer("nvidia.com/gpu")


def test_a_tree_deserves_the_whole_cluster_at_every_level():
    snapshot = snapshot_of(Recipe("queues-hierarchical", "x", 3, SMALL["queues-hierarchical"]))
    by_parent = {}
    for queue in snapshot.queues:
        due = dict(queue.deserved).get("nvidia.com/gpu", 0)
        by_parent[queue.parent] = by_parent.get(queue.parent, 0) + due
    assert by_parent["root"] == 24
    assert by_parent["d0"] + by_parent["d1"] == 24


def test_cut_bins_are_full():
    packing = parse_vbp(Recipe("vector-packing-cut", "x", 3, {"bins": 4, "pieces": 3}).text(), "x")
    totals = [sum(k.sizes[d] * k.number for k in packing.kinds) for d in range(2)]
    assert totals == [4000, 4000]
    assert packing.num_items == 12


def test_items_are_as_many_as_asked_for():
    packing = parse_vbp(Recipe("vector-packing", "x", 3, SMALL["vector-packing"]).text(), "x")
    assert packing.num_items == 9


@pytest.mark.parametrize(
    ("family", "parameters", "told"),
    [
        ("gangs", {}, "family: gangs is not one of gangs-homogeneous"),
        ("topology", {"spine": 2}, "parameters.spine: is not one of spines, racks"),
        ("topology", {"spines": "2"}, "parameters.spines: '2' is not of type int"),
        ("gangs-homogeneous", {}, "parameters: .* 'nodes'"),
        ("infeasible", {"case": "none", "nodes": 4}, "parameters: case: none is not one of node"),
    ],
)
def test_a_recipe_that_makes_nothing_says_why(family, parameters, told):
    with pytest.raises(RecipeError, match=told):
        Recipe(family, "x", 0, parameters).text()


def test_chance_gives_the_numbers_that_it_gave_at_first():
    chance = Chance(1)
    drawn = [chance.int_below(1000) for _ in range(5)]
    assert drawn == [134, 847, 763, 255, 495]
    assert {chance.int_between(2, 3) for _ in range(50)} == {2, 3}
    assert {chance.pick("ab", (0, 1)) for _ in range(20)} == {"b"}
