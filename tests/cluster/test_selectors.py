"""Selectors match as upstream's do, including absent labels and unusual numbers."""

from __future__ import annotations

import pytest

from optsched.cluster.selectors import LabelSelector, NodeSelector, NodeTerm, Operator, Requirement


@pytest.mark.parametrize(
    ("operator", "values", "accepted", "refused"),
    [
        (Operator.IN, ("a", "b"), ("a", "b"), ("c", "", None)),
        (Operator.IN, ("",), ("",), ("a", None)),
        (Operator.NOT_IN, ("a",), ("b", "", None), ("a",)),
        (Operator.EXISTS, (), ("a", ""), (None,)),
        (Operator.DOES_NOT_EXIST, (), (None,), ("a", "")),
        (Operator.GT, ("5",), ("6", "600"), ("5", "-6", "", None)),
        (Operator.LT, ("5",), ("4", "-600"), ("5", "6", "", None)),
    ],
)
def test_operators(
    operator: Operator,
    values: tuple[str, ...],
    accepted: tuple[str | None, ...],
    refused: tuple[str | None, ...],
) -> None:
    requirement = Requirement("label", operator, values)
    assert [v for v in accepted if not requirement.accepts(v)] == []
    assert [v for v in refused if requirement.accepts(v)] == []


@pytest.mark.parametrize(
    "text",
    ["1_000", " 7", "7 ", "٧", "7.0", "0x7", "seven", "", "9223372036854775808"],
)
def test_what_go_does_not_read_as_a_number_is_no_number(text: str) -> None:
    # Upstream compares with strconv.ParseInt(value, 10, 64), but "1_000" is a valid label value.
    assert not Requirement("label", Operator.GT, ("0",)).accepts(text)
    assert not Requirement("label", Operator.LT, (text,)).accepts("-1")


@pytest.mark.parametrize("text", ["+7", "007", "9223372036854775807"])
def test_what_go_reads_as_a_number_is_one(text: str) -> None:
    assert Requirement("label", Operator.GT, ("6",)).accepts(text)


def test_comparison_without_a_number_to_compare_with_accepts_nothing() -> None:
    assert not Requirement("label", Operator.GT).accepts("1")


def test_label_selector_is_a_conjunction() -> None:
    selector = LabelSelector(
        (
            Requirement("app", Operator.IN, ("web",)),
            Requirement("tier", Operator.DOES_NOT_EXIST),
        )
    )
    assert selector.matches({"app": "web"})
    assert not selector.matches({"app": "web", "tier": "1"})
    assert not selector.matches({})


def test_empty_label_selector_matches_everything() -> None:
    assert LabelSelector().matches({})


def test_node_selector_is_a_disjunction_of_terms() -> None:
    big = NodeTerm((Requirement("cores", Operator.GT, ("32",)),))
    named = NodeTerm(names=(Requirement("metadata.name", Operator.IN, ("n7",)),))
    selector = NodeSelector((big, named))
    assert selector.matches("n1", {"cores": "64"})
    assert selector.matches("n7", {})
    assert not selector.matches("n1", {"cores": "32"})


def test_node_term_asks_for_name_and_labels_at_once() -> None:
    term = NodeTerm(
        (Requirement("zone", Operator.IN, ("a",)),),
        (Requirement("metadata.name", Operator.IN, ("n1",)),),
    )
    assert term.matches("n1", {"zone": "a"})
    assert not term.matches("n2", {"zone": "a"})
    assert not term.matches("n1", {"zone": "b"})


def test_empty_node_terms_and_selectors_match_nothing() -> None:
    # Upstream's documentation says: "A null or empty node selector term matches no objects."
    assert not NodeTerm().matches("n1", {"zone": "a"})
    assert not NodeSelector().matches("n1", {"zone": "a"})
    assert not NodeSelector((NodeTerm(),)).matches("n1", {"zone": "a"})


@pytest.mark.parametrize(
    ("requirement", "text"),
    [
        (Requirement("zone", Operator.IN, ("a",)), "zone=a"),
        (Requirement("zone", Operator.IN, ("a", "b")), "zone in (a,b)"),
        (Requirement("zone", Operator.NOT_IN, ("a",)), "zone notin (a)"),
        (Requirement("gpu", Operator.EXISTS), "gpu"),
        (Requirement("gpu", Operator.DOES_NOT_EXIST), "!gpu"),
        (Requirement("cores", Operator.GT, ("8",)), "cores>8"),
        (Requirement("cores", Operator.LT, ("8",)), "cores<8"),
    ],
)
def test_requirements_read_as_kubectl_writes_them(requirement: Requirement, text: str) -> None:
    assert str(requirement) == text


def test_selectors_read_as_kubectl_writes_them() -> None:
    zone, gpu = Requirement("zone", Operator.IN, ("a",)), Requirement("gpu", Operator.EXISTS)
    assert str(LabelSelector((zone, gpu))) == "zone=a,gpu"
    assert str(LabelSelector()) == "<everything>"
    assert str(NodeSelector((NodeTerm((zone,)), NodeTerm((gpu,))))) == "zone=a or gpu"
    assert str(NodeSelector((NodeTerm(), NodeTerm((gpu,))))) == "<nothing> or gpu"
    assert str(NodeSelector()) == "<nothing>"
