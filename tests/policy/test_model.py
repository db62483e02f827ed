from __future__ import annotations

from pathlib import Path

import pytest

from optsched.plugins.extension_points import Switch
from optsched.policy import Admission, Budgets, Policy, PolicyError, SolverKind, parse_policy

GOLDEN = Path(__file__).parent / "golden"
HEAD = "apiVersion: optsched.io/v1alpha1\nkind: Model\nname: m\n"
BODY = "actions: [allocate]\ntiers: [{rules: [{name: gang}, {name: priority}]}]\n"
LEVELS = "levels: [admission]\n"


def load(text: str) -> Policy:
    return parse_policy(text, "m.yaml")


def test_a_model_says_everything_a_policy_holds() -> None:
    policy = load(
        "apiVersion: optsched.io/v1alpha1\n"
        "kind: Model\n"
        "name: mine\n"
        "meaning: For trying things.\n"
        "actions: [enqueue, allocate]\n"
        "tiers:\n"
        "- rules:\n"
        "  - name: gang\n"
        "    enableJobOrder: false\n"
        "  - name: priority\n"
        "- rules:\n"
        "  - name: nodeorder\n"
        "    arguments:\n"
        "      leastrequested.weight: 4\n"
        "levels: [admission, node-score]\n"
        "admission: {by: weight}\n"
        "solver: {engine: cpsat, budget: 250ms, deterministicTime: 2.5}\n"
        "period: 2s\n"
        "starvationAfter: 10m\n"
    )
    assert (policy.name, policy.source) == ("mine", "m.yaml")
    assert policy.meaning == "For trying things."
    assert policy.actions == ("enqueue", "allocate")
    assert [(a.rule.name, a.tier) for a in policy.rules.active] == [
        ("gang", 1),
        ("sub-groups", 1),
        ("priority", 1),
        ("nodeorder", 2),
    ]
    assert not policy.rules.enables("gang", Switch.JOB_ORDER)
    assert policy.tiers[1][0].arguments == (("leastrequested.weight", 4),)
    assert policy.levels == ("admission", "node-score")
    assert policy.admission is Admission.BY_WEIGHT
    assert policy.solver is SolverKind.CPSAT
    assert policy.budgets == Budgets(250, 2000, 600_000, 2.5)
    assert policy.warnings == ()


def test_what_a_model_leaves_out_has_defaults() -> None:
    policy = load(HEAD + BODY + LEVELS)
    assert policy.budgets == Budgets()
    assert (policy.admission, policy.solver) == (Admission.BY_PRIORITY, SolverKind.CPSAT)


def test_the_default_budget_fits_into_short_periods() -> None:
    assert load(HEAD + BODY + LEVELS + "period: 100ms").budgets.solve_ms == 100


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy((GOLDEN / "model.yaml").read_text(), "model.yaml")
    assert f"{caught.value}\n" == (GOLDEN / "model.txt").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + BODY, "the field levels is missing"),
        (HEAD + LEVELS + "actions: [allocate]", "the field tiers is missing"),
        (HEAD + BODY.replace("[allocate]", "[]") + LEVELS, "names no action"),
        (HEAD + BODY.replace("[allocate]", "allocate") + LEVELS, "must be a list, not the text"),
        (
            HEAD + BODY + LEVELS + "solver: {engine: cpsat, budget: 2s}",
            "its budget must not be longer than the period",
        ),
        (HEAD + BODY + LEVELS + "solver: {}", "the field engine is missing"),
        (HEAD + BODY + LEVELS + "admission: weight", "must be a mapping"),
        (HEAD + BODY + LEVELS + "configurations: []", "there is no such field"),
        (HEAD + BODY + LEVELS + "reservations: -1", "must be at least 0"),
        (HEAD + BODY + LEVELS + "reservations: few", "must be a whole number"),
        (HEAD.replace("Model", "Modle") + BODY + LEVELS, 'there is no kind "Modle"'),
    ],
)
def test_single_mistakes(text: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load(text)
    assert [message in p.message for p in caught.value.problems] == [True]


def test_levels_are_not_blamed_for_a_misspelt_rule() -> None:
    text = HEAD + BODY.replace("priority", "proporton") + "levels: [guarantee, admission]"
    with pytest.raises(PolicyError) as caught:
        load(text)
    assert [p.likely for p in caught.value.problems] == ["proportion"]


@pytest.mark.parametrize(
    ("level", "rules"),
    [
        ("guarantee", ["proportion", "capacity"]),
        ("fair-share", ["drf", "proportion", "capacity"]),
        ("node-score", ["nodeorder", "binpack"]),
    ],
)
def test_levels_need_their_rules(level: str, rules: list[str]) -> None:
    levels = f"levels: [admission, {level}]"
    for rule in rules:
        assert load(HEAD + BODY.replace("priority", rule) + levels).levels[1] == level
    with pytest.raises(PolicyError, match="needs the rule"):
        load(HEAD + BODY + levels)


def test_moves_without_a_solver_are_warned_of() -> None:
    text = HEAD + BODY + LEVELS
    text = text.replace("allocate", "allocate, consolidation", 1)
    assert load(text).warnings == ()
    (warning,) = load(text + "solver: none\n").warnings
    assert (warning.path, warning.message) == (
        "actions",
        "without a solver the action consolidation has no effect",
    )


def test_weights_without_priorities_are_warned_of() -> None:
    text = HEAD + BODY.replace("priority", "drf") + LEVELS + "admission: {by: weight}"
    (warning,) = load(text).warnings
    assert warning.path == "admission.by"
    assert "without the rule priority" in warning.message
