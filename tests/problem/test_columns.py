"""Selectors evaluated by column give the same result as for each node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from optsched.cluster.selectors import (
    NodeSelector,
    NodeTerm,
    Operator,
    Requirement,
    Taint,
    TaintEffect,
)
from optsched.problem.columns import NodeColumns
from tests.support.small import HOST, ZONE, node

SPOT = Taint("spot", "", TaintEffect.NO_SCHEDULE)
NODES = (
    node("n0", labels={ZONE: "b", "cores": "8"}, taints=(SPOT,)),
    node("n1", labels={"cores": "64"}),
    node("n2", labels={ZONE: "a", "cores": "many"}),
    node("n3", labels={ZONE: "b"}, unschedulable=True),
)

REQUIREMENTS = [
    Requirement(ZONE, Operator.IN, ("a", "b")),
    Requirement(ZONE, Operator.NOT_IN, ("b",)),
    Requirement(ZONE, Operator.EXISTS),
    Requirement(ZONE, Operator.DOES_NOT_EXIST),
    Requirement("cores", Operator.GT, ("8",)),
    Requirement("cores", Operator.LT, ("64",)),
    Requirement(HOST, Operator.NOT_IN, ("n1", "absent", "n1")),
    Requirement("nobody-has-it", Operator.EXISTS),
    Requirement("nobody-has-it", Operator.NOT_IN, ("b",)),
    Requirement("nobody-has-it", Operator.GT, ("8",)),
]


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_requirements(requirement: Requirement) -> None:
    wanted = [requirement.accepts(n.labels.get(requirement.key)) for n in NODES]
    columns = NodeColumns(NODES)
    assert columns.accepts(requirement).tolist() == wanted
    assert columns.accepts(requirement).tolist() == wanted  # the column returns its cached result


@pytest.mark.parametrize(
    "selector",
    [
        NodeSelector(),
        NodeSelector((NodeTerm(),)),
        NodeSelector((NodeTerm((REQUIREMENTS[0], REQUIREMENTS[4])), NodeTerm((REQUIREMENTS[3],)))),
        NodeSelector((NodeTerm(names=(Requirement("metadata.name", Operator.IN, ("n3",)),)),)),
        NodeSelector((NodeTerm((REQUIREMENTS[0],), (Requirement("", Operator.NOT_IN, ("n3",)),)),)),
    ],
    ids=str,
)
def test_selectors(selector: NodeSelector) -> None:
    wanted = [selector.matches(n.name, n.labels) for n in NODES]
    assert NodeColumns(NODES).selects(selector).tolist() == wanted


@pytest.mark.parametrize(("key", "number"), [(ZONE, 2), (HOST, 4), ("nobody-has-it", 0)])
def test_domains_group_nodes_by_value(key: str, number: int) -> None:
    domain, num_domains = NodeColumns(NODES).domains(key)
    assert num_domains == number
    for i, one in enumerate(NODES):
        assert (domain[i] == -1) == (key not in one.labels)
        for j, other in enumerate(NODES):
            if key in one.labels and key in other.labels:
                assert (domain[i] == domain[j]) == (one.labels[key] == other.labels[key])
    assert set(domain[domain >= 0].tolist()) == set(range(number))


def test_taints_are_counted_with_the_cordon() -> None:
    codes, taints = NodeColumns(NODES).taints()
    assert [taints[c] for c in codes.tolist()] == [n.marks for n in NODES]
    assert len(taints) == 3


def test_no_nodes_at_all() -> None:
    columns = NodeColumns(())
    assert columns.domains(ZONE)[1] == 0
    assert len(columns.selects(NodeSelector((NodeTerm((REQUIREMENTS[0],)),)))) == 0
    assert len(columns.taints()[0]) == 0


def test_columns_are_carried_over_to_nodes_with_the_same_marks() -> None:
    before = NodeColumns(NODES)
    asked = before.accepts(REQUIREMENTS[0])
    fuller = tuple(replace(n, allocatable=()) for n in NODES)
    after = before.carry_over(fuller)
    assert after.accepts(REQUIREMENTS[0]) is asked
    assert np.array_equal(after.domains(HOST)[0], before.domains(HOST)[0])


def test_results_are_kept_as_long_as_they_are_read() -> None:
    columns = NodeColumns(NODES)
    asked = columns.accepts(REQUIREMENTS[0])
    for _ in range(3):
        columns = columns.carry_over(NODES)
        assert columns.accepts(REQUIREMENTS[0]) is asked
    forgotten = columns.carry_over(NODES).carry_over(NODES).accepts(REQUIREMENTS[0])
    assert forgotten is not asked
    assert np.array_equal(forgotten, asked)


def test_requirements_on_labels_that_no_node_has_share_their_result() -> None:
    columns = NodeColumns(NODES)
    masks = {
        id(columns.accepts(Requirement(f"absent-{i}", Operator.DOES_NOT_EXIST))) for i in range(9)
    }
    assert len(masks) == 1


class _Counted(tuple[str, ...]):
    """Label values that are compared with a node's value only by `in`, which fails here."""

    def __contains__(self, value: object) -> bool:
        pytest.fail(f"all values are compared with {value}")


def test_listed_values_are_looked_up() -> None:
    """Without an index, a requirement with many values is compared with each node's value."""
    values = _Counted(("n1", "n3"))
    columns = NodeColumns(NODES)
    assert columns.accepts(Requirement(HOST, Operator.IN, values)).tolist() == [0, 1, 0, 1]
    chosen = NodeSelector(
        (NodeTerm(names=(Requirement("metadata.name", Operator.NOT_IN, values),)),)
    )
    assert columns.selects(chosen).tolist() == [1, 0, 1, 0]
