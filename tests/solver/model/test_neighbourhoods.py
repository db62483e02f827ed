"""Tests of the nodes in one neighbourhood of a plan."""

from __future__ import annotations

import numpy as np
import pytest

from optsched.policy.load import load_policy
from optsched.solver.model import neighbourhoods
from optsched.solver.model.neighbourhoods import Neighbourhood, choose_gangs, choose_nodes
from optsched.solver.model.node_masks import count_fitting_tasks
from tests.support.engines import Bench
from tests.support.synthetic_clusters import MixedCluster

RULES = load_policy("volcano-default", lambda _: "").rules


@pytest.fixture(scope="module")
def found():
    snapshot = MixedCluster(num_nodes=80, num_pods=300, num_shapes=40, fill=0.8, seed=5).snapshot()
    return Bench.of(snapshot, RULES, ("admission",))


def choose(found, number=0, seed=0):
    most = count_fitting_tasks(found.problem, found.rules)
    return choose_nodes(found.problem, found.tiers, found.greedy(), most, number, seed), most


def test_they_have_no_more_pairs_than_a_model_may_have(found, monkeypatch):
    monkeypatch.setattr(neighbourhoods, "MOST_PAIRS", 200)
    for number in range(5):
        nodes, most = choose(found, number)
        pairs = int((most[:, nodes] > 0).sum())
        assert 100 < pairs <= 200


def test_only_nodes_are_chosen_that_fit_a_waiting_task(found):
    nodes, most = choose(found)
    assert (most[:, nodes] > 0).any(axis=0).all()


def test_they_are_the_same_each_time_and_others_with_another_number_or_seed(found, monkeypatch):
    monkeypatch.setattr(neighbourhoods, "MOST_PAIRS", 200)
    first, _ = choose(found)
    assert np.array_equal(first, choose(found)[0])
    assert not np.array_equal(first, choose(found, 1)[0])
    assert not np.array_equal(first, choose(found, 0, 1)[0])
    assert np.array_equal(choose(found, 3, 2)[0], choose(found, 3, 2)[0])


def test_the_first_one_has_the_nodes_with_idle_capacity_for_waiting_gangs(found, monkeypatch):
    monkeypatch.setattr(neighbourhoods, "MOST_PAIRS", 200)
    nodes, most = choose(found)
    decisions, problem = found.greedy(), found.problem
    weight = neighbourhoods._weigh_nodes(problem, found.tiers, decisions, most, 0)
    others = (most > 0).any(axis=0) & ~nodes
    assert others.any()
    assert weight[nodes].mean() > 2 * weight[others].mean()


def test_they_are_few_where_the_first_node_is_open_to_more_classes(found, monkeypatch):
    assert not Neighbourhood(*choose(found)).is_crowded
    monkeypatch.setattr(neighbourhoods, "MOST_PAIRS", 4)
    nodes, most = choose(found)
    assert int(nodes.sum()) == neighbourhoods.FEW_NODES
    assert Neighbourhood(nodes, most).is_crowded


@pytest.mark.parametrize("number", [0, 1])
def test_gangs_are_on_few_nodes_or_wait_for_them(found, number, monkeypatch):
    monkeypatch.setattr(neighbourhoods, "FEW_NODES", 3)
    monkeypatch.setattr(neighbourhoods, "FEW_CLASSES", 12)
    monkeypatch.setattr(neighbourhoods, "MOST_PAIRS", 0)
    problem, decisions = found.problem, found.greedy()
    nodes, most = choose(found, number)
    chosen = Neighbourhood(nodes, most)
    gangs = choose_gangs(problem, found.tiers, decisions, chosen, number, 0)
    assert int(nodes.sum()) == 3
    classes = np.unique(problem.task_class[gangs[problem.gang_of]])
    assert 0 < len(classes) <= 12
    at = decisions.node_of
    placed = np.unique(problem.gang_of[at >= 0])
    for gang in np.flatnonzero(gangs).tolist():
        tasks = problem.gang_of == gang
        if gang in placed:
            assert nodes[at[tasks & (at >= 0)]].any()
        else:
            assert (most[problem.task_class[tasks]][:, nodes] > 0).any()
    assert gangs[placed].any()
    assert gangs.sum() > gangs[placed].sum()


def test_they_are_the_same_gangs_each_time_and_others_with_another_number(found, monkeypatch):
    monkeypatch.setattr(neighbourhoods, "MOST_PAIRS", 0)

    def chosen(number):
        near = Neighbourhood(*choose(found, number))
        gangs = choose_gangs(found.problem, found.tiers, found.greedy(), near, number, 0)
        return [gangs.tolist(), near.nodes.tolist()]

    assert chosen(0) == chosen(0)
    assert chosen(1) != chosen(0)
