from __future__ import annotations

import pickle
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.plugins.extension_points import DEFAULT_SWITCHES, Switch
from optsched.plugins.gangs.enqueueing import Overcommit
from optsched.plugins.nodes.usage import Usage
from optsched.plugins.objectives.levels import LEVELS
from optsched.plugins.scores.packing import Binpack
from optsched.plugins.storage.volumes import VolumeFill, Volumes
from optsched.policy import (
    Admission,
    PolicyError,
    Severity,
    SolverKind,
    load_policy,
    parse_policy,
)
from optsched.policy.diagnostic import Findings
from optsched.policy.located import read_tree
from optsched.policy.policy_sections import LEVEL_PLUGINS
from tests.support.shared import found, shared

if TYPE_CHECKING:
    from optsched.policy import Policy

HERE = Path(__file__).parent
SHORT = "actions: allocate\ntiers:\n- plugins:\n  - name: {}\n"


def load(text: str) -> Policy:
    return parse_policy(text, "volcano-scheduler.conf")


def problems(text: str) -> list[tuple[str, str, str]]:
    with pytest.raises(PolicyError) as caught:
        load(text)
    return [(p.path, p.message, p.likely) for p in caught.value.problems]


def warnings(policy: Policy) -> list[str]:
    assert all(p.severity is Severity.WARNING for p in policy.warnings)
    return [p.message for p in policy.warnings]


# --- configurations that people use --------------------------------------------------------------


def test_confs_of_experiments_are_there() -> None:
    assert any(shared("experiments", "conf").glob("*.conf"))


@pytest.mark.parametrize("path", found("experiments/conf/*.conf"), ids=lambda p: p.stem)
def test_confs_of_experiments_load(path: Path) -> None:
    policy = load(path.read_text())
    assert policy.actions[0] == "enqueue"
    assert [p.name for p in policy.tiers[0]] == ["priority", "gang", "conformance"]
    assert policy.levels == ("guarantee", "admission", "fair-share", "tasks", "node-score")
    assert warnings(policy) == []


def embedded(path: Path, *fields: str) -> str:
    """Return the text under a path of fields in a YAML file."""
    node = read_tree(path.read_text(), path.name, Findings())
    for name in fields:
        assert node is not None
        assert isinstance(node.value, dict)
        node = node.value[name].node
    assert node is not None
    assert isinstance(node.value, str)
    return node.value


def test_seed_configmap_loads() -> None:
    path = shared("manifests/seeds/s001-L274-scheduler-configmap.yaml")
    policy = load(embedded(path, "data", "volcano-scheduler.conf"))
    assert policy.actions == ("enqueue", "allocate", "backfill")
    assert warnings(policy) == []


def test_seed_binpack_arguments_load() -> None:
    fragment = shared("manifests/seeds/s001-L329-binpack-arguments.yaml").read_text()
    policy = load(f"actions: allocate\ntiers:\n- plugins:\n{indent(fragment, '  ')}")
    rule = policy.rules.active[0].rule
    assert rule == Binpack(10, {"cpu": 1, "memory": 1, "nvidia.com/gpu": 2})
    assert warnings(policy) == []


def test_crater_override_loads() -> None:
    path = shared("manifests/crater/values.yaml")
    policy = load(embedded(path, "custom", "scheduler_config_override"))
    assert [p.name for p in policy.tiers[1]][-3:] == ["capacity", "nodeorder", "binpack"]
    assert policy.rules.enables("gang", Switch.JOB_READY)
    assert not policy.rules.enables("gang", Switch.PREEMPTABLE)
    assert warnings(policy) == []


def test_the_model_crater_is_crater_s_configuration() -> None:
    path = shared("manifests/crater/values.yaml")
    theirs = load(embedded(path, "custom", "scheduler_config_override"))
    ours = load_policy("crater", Path.read_text)
    assert (ours.actions, ours.tiers) == (theirs.actions, theirs.tiers)
    assert (ours.levels, ours.solver) == (theirs.levels, theirs.solver)


# --- meaning -------------------------------------------------------------------------------------


def test_defaults_are_volcanos() -> None:
    policy = load(SHORT.format("gang"))
    assert policy.name == policy.source == "volcano-scheduler.conf"
    assert (policy.solver, policy.admission) == (SolverKind.CPSAT, Admission.BY_PRIORITY)
    assert policy.rules.active[0].switches == DEFAULT_SWITCHES
    assert (policy.rules.active[0].plugin, policy.rules.active[0].tier) == ("gang", 1)


@pytest.mark.parametrize(
    ("plugins", "levels"),
    [
        (["gang"], ("admission", "tasks")),
        (["drf"], ("admission", "fair-share", "tasks")),
        (["capacity"], ("guarantee", "admission", "fair-share", "tasks")),
        (["network-topology-aware"], ("admission", "tasks", "topology", "node-score")),
        (
            [
                *("proportion", "network-topology-aware", "fragmentation", "binpack"),
                *("shortest-remaining", "finish-time-fair"),
            ],
            tuple(LEVELS),
        ),
        (["sla"], ("admission", "tasks")),
    ],
)
def test_plugins_become_levels(plugins: list[str], levels: tuple[str, ...]) -> None:
    assert load(SHORT.format("\n  - name: ".join(plugins))).levels == levels


def test_scores_that_are_switched_off_are_no_level() -> None:
    policy = load(SHORT.format("binpack\n    enableNodeOrder: false"))
    assert policy.levels == ("admission", "tasks")


def test_the_default_order_of_levels() -> None:
    order = "guarantee finish-time shortest admission fair-share tasks topology frag node-score"
    assert list(LEVELS) == order.split()


def test_levels_know_the_plugins_that_serve_them() -> None:
    assert LEVEL_PLUGINS["fair-share"] == ("capacity", "drf", "proportion")
    assert "admission" not in LEVEL_PLUGINS
    assert {"binpack", "nodeorder", "extender"} < set(LEVEL_PLUGINS["node-score"])
    assert not {"gang", "drf", "predicates"} & set(LEVEL_PLUGINS["node-score"])


def test_a_shape_of_volumes_alone_is_a_score_of_nodes() -> None:
    shaped = "predicates\n    arguments:\n      volumebinding.shape: [{utilization: 0, score: 10}]"
    assert "node-score" in load(SHORT.format(shaped)).levels
    assert "node-score" not in load(SHORT.format("predicates")).levels


def test_plugins_bring_their_rules_with_switches_and_tiers() -> None:
    policy = load(
        "actions: allocate\n"
        "tiers:\n"
        "- plugins:\n"
        "  - name: gang\n"
        "- plugins:\n"
        "  - name: capacity\n"
        "    enabledAllocatable: false\n"
        "    enableHierarchy: true\n"
    )
    rules = [(a.rule.name, a.plugin, a.tier) for a in policy.rules.active]
    assert rules == [
        ("gang", "gang", 1),
        ("sub-groups", "gang", 1),
        ("capacity", "capacity", 2),
        ("capability", "capacity", 2),
        ("guarantee", "capacity", 2),
        ("leaf-queues", "capacity", 2),
    ]
    for name in ("capacity", "capability", "guarantee", "leaf-queues"):
        assert not policy.rules.enables(name, Switch.ALLOCATABLE)
        assert policy.rules.enables(name, Switch.HIERARCHY)
        assert policy.rules.enables(name, Switch.RECLAIMABLE)


@pytest.mark.parametrize("value", ["1.5", '"1.5"', "'1.5'"])
def test_arguments_may_be_quoted(value: str) -> None:
    policy = load(SHORT.format(f"overcommit\n    arguments:\n      overcommit-factor: {value}"))
    assert policy.rules.active[0].rule == Overcommit(1.5)


def test_quoted_switches_and_weights_count() -> None:
    policy = load(
        SHORT.format(
            "predicates\n    arguments:\n"
            '      predicate.PodAffinityEnable: "false"\n'
            '      volumebinding.weight: "2"\n'
            "      volumebinding.shape: [{utilization: 0, score: 10}]"
        )
    )
    assert "pod-affinity" not in [a.rule.name for a in policy.rules.active]
    assert "host-ports" in [a.rule.name for a in policy.rules.active]
    assert VolumeFill(((0, 10),), 2) in [a.rule for a in policy.rules.active]


def test_arguments_that_have_their_effect_are_not_warned_of() -> None:
    text = (
        "nodeorder\n    arguments: {imagelocality.weight: 2, podaffinity.weight: 0}\n"
        "  - name: predicates\n    arguments:\n      volumebinding.bindTimeoutSeconds: 5\n"
        "      volumebinding.shape: []\n"
        "  - name: usage\n    arguments: {estimator: {burst_ratio: 0.5}}"
    )
    policy = load(SHORT.format(text))
    assert warnings(policy) == []
    assert Volumes(5) in [a.rule for a in policy.rules.active]


@pytest.mark.parametrize("text", ["allocate", '"allocate , backfill"', "allocate,backfill"])
def test_actions_need_no_spaces(text: str) -> None:
    policy = load(f"actions: {text}\ntiers: [{{plugins: [{{name: gang}}]}}]")
    assert policy.actions in (("allocate",), ("allocate", "backfill"))


@pytest.mark.parametrize("alias", ["numaaware", "numa-aware"])
def test_other_spellings_of_names_mean_the_same(alias: str) -> None:
    policy = load(SHORT.format(alias))
    assert policy.tiers[0][0].name == "numa-aware"
    assert warnings(policy) == []


def test_plugins_of_jobs_are_passed_over() -> None:
    policy = load(SHORT.format("gang\n  - name: svc"))
    assert [p.name for p in policy.tiers[0]] == ["gang"]
    assert warnings(policy) == ["svc is a job plugin, not a scheduler plugin, and is ignored"]


def test_strategies_of_rescheduling_are_a_list() -> None:
    params = "{thresholds: {cpu: 20}, nodeFit: false}"
    entry = f"{{name: lowNodeUtilization, params: {params}}}"
    policy = load(SHORT.format(f"rescheduling\n    arguments: {{strategies: [{entry}]}}"))
    assert policy.tiers[0][0].arguments == (
        ("strategies.0.name", "lowNodeUtilization"),
        ("strategies.0.params.thresholds.cpu", 20),
        ("strategies.0.params.nodeFit", False),
    )


@pytest.mark.parametrize(
    ("strategies", "message"),
    [
        ("5", "must be a list, not 5"),
        ("[{name: highNodeUtilization}]", "there is no name"),
        ("[{name: lowNodeUtilization, params: {treshold: 5}}]", "has no such argument"),
        ("[{params: {thresholds: {cpu: many}}}]", "must be a number"),
    ],
)
def test_mistakes_in_strategies_have_a_place(strategies: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load(SHORT.format(f"rescheduling\n    arguments: {{strategies: {strategies}}}"))
    assert [message in p.message for p in caught.value.problems] == [True]


def test_the_interval_of_metrics_is_how_long_load_goes_unseen() -> None:
    text = SHORT.format("usage") + "metrics: {type: prometheus, tls: {cert: /x}, interval: 15s}\n"
    policy = load(text)
    assert policy.rules.active[0].rule == Usage(blind_ms=15_000)
    (warning,) = warnings(policy)
    assert warning.startswith("node load is not fetched from this source")
    assert "metrics.interval" in [path for path, _, _ in problems(text.replace("15s", "soon"))]


NESTED = """resource-strategy-fit
    arguments:
      resources:
        nvidia.com/*: {{type: {}, weight: 2}}
      sra: {{enable: true, resources: "a, b"}}
"""


LEAST = NESTED.format("LeastAllocated")


def test_arguments_in_mappings_have_dotted_names() -> None:
    policy = load(SHORT.format(NESTED.format("MostAllocated")))
    assert policy.tiers[0][0].arguments == (
        ("resources.nvidia.com/*.type", "MostAllocated"),
        ("resources.nvidia.com/*.weight", 2),
        ("sra.enable", True),
        ("sra.resources", "a, b"),
    )
    assert warnings(policy) == []


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (NESTED.format("MostAlocated"), "resources.nvidia.com/*.type", 'no type "MostAlocated"'),
        (LEAST.replace("nvidia.com/*", "n*.com"), "resources.n*.com", "an asterisk"),
        (LEAST.replace("enable:", "enabled:"), "sra.enabled", "no such argument"),
        ("resource-strategy-fit\n    arguments: {sra: true}", "sra", "must be a mapping"),
    ],
)
def test_mistakes_in_mappings_are_found_there(text: str, place: str, message: str) -> None:
    found = [p for p in problems(SHORT.format(text)) if p[0].endswith(f"arguments.{place}")]
    assert len(found) == 1
    assert message in found[0][1]


def test_metrics_alone_are_no_reason_to_warn() -> None:
    policy = load(SHORT.format("gang") + "metrics:\n  elasticsearch.password: secret\n")
    assert warnings(policy) == []
    assert "secret" not in repr(policy)
    assert b"secret" not in pickle.dumps(policy)


def test_the_other_spelling_of_a_switch_counts_with_a_warning() -> None:
    policy = load(SHORT.format("gang\n    enabledJobReady: false"))
    assert not policy.rules.enables("gang", Switch.JOB_READY)
    assert warnings(policy) == ["Volcano spells it enableJobReady and would ignore this spelling"]


def test_the_right_spelling_of_a_switch_wins() -> None:
    text = "gang\n    {}: false\n    {}: true"
    for order in (("enabledJobReady", "enableJobReady"), ("enableJobReady", "enabledJobReady")):
        policy = load(SHORT.format(text.format(*order)))
        assert policy.rules.enables("gang", Switch.JOB_READY) is (order[1] == "enableJobReady")


def test_configurations_of_actions_are_kept() -> None:
    policy = load(
        SHORT.format("gang") + "configurations:\n- name: preempt\n"
        "  arguments: {minCandidateNodesPercentage: '20'}\n- name: allocate\n"
    )
    assert policy.action_arguments == (
        ("preempt", (("minCandidateNodesPercentage", 20),)),
        ("allocate", ()),
    )


@pytest.mark.parametrize("text", ["none", "{engine: none}"])
def test_the_solver_can_be_switched_off(text: str) -> None:
    assert load(SHORT.format("gang") + f"solver: {text}\n").solver is SolverKind.NONE


# --- what is wrong -------------------------------------------------------------------------------


def test_every_mistake_is_told_at_once() -> None:
    text = (HERE / "golden" / "volcano.conf").read_text()
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "volcano.conf")
    assert f"{caught.value}\n" == (HERE / "golden" / "volcano.txt").read_text()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("actions: allocate", ("", "the field tiers is missing", "")),
        ("tiers: [{plugins: [{name: gang}]}]", ("", "the field actions is missing", "")),
        ("actions: allocate\ntiers:", ("tiers", "must be a list, not empty", "")),
        ("actions: allocate\ntiers: []", ("tiers", "names no plugin", "")),
        ("actions: a\ntiers: [{}]", ("tiers[0]", "the field plugins is missing", "")),
        (
            "actions: [enqueue, allocate]\ntiers: [{plugins: [{name: gang}]}]",
            (
                "actions",
                "must be a string with commas between actions",
                '"enqueue, allocate"',
            ),
        ),
        (
            "actions: 'allocate, '\ntiers: [{plugins: [{name: gang}]}]",
            ("actions", "an action has no name: write one, or remove the comma", ""),
        ),
        *(
            (
                f"actions: {empty}\ntiers: [{{plugins: [{{name: gang}}]}}]",
                ("actions", 'names no action: write some, such as "enqueue, allocate"', ""),
            )
            for empty in ('""', "' , '", "null", "")
        ),
        (
            "actions: gangPreempt\ntiers: [{plugins: [{name: gang}]}]",
            ("actions", 'there is no action "gangPreempt"', "gangpreempt"),
        ),
    ],
)
def test_what_is_missing_is_said(text: str, problem: tuple[str, str, str]) -> None:
    assert problem in problems(text)


def test_actions_over_several_lines_are_still_found() -> None:
    text = 'actions: "enqueue,\n  alocate"\ntiers: [{plugins: [{name: gang}]}]'
    with pytest.raises(PolicyError) as caught:
        load(text)
    assert [(p.line, p.message) for p in caught.value.problems] == [
        (1, 'there is no action "alocate"')
    ]


VALID = """\
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: gang
    enablePreemptable: false
- plugins:
  - name: binpack
    arguments: {binpack.weight: "10", binpack.resources: a/b}
configurations: [{name: allocate, arguments: {predicateErrorCacheEnable: true}}]
metrics: {type: prometheus}
solver: none
"""


@given(
    st.integers(0, len(VALID)),
    st.integers(0, 8),
    st.text("ab:-[]{}&*!'\"# \n\t01.~,", max_size=4),
)
def test_damaged_files_load_or_say_why(at: int, number: int, text: str) -> None:
    damaged = VALID[:at] + text + VALID[at + number :]
    try:
        load(damaged)
    except PolicyError as e:
        assert str(e)  # noqa: PT017
        assert all(p.file == "volcano-scheduler.conf" for p in e.problems)  # noqa: PT017


@pytest.mark.parametrize(("text", "likely"), [("1", "1s"), ("soon", ""), ("-3m", "")])
def test_a_waiting_time_is_a_duration(text: str, likely: str) -> None:
    conf = SHORT.format(f"sla\n    arguments: {{sla-waiting-time: {text}}}")
    (problem,) = problems(conf)
    assert problem[0] == "tiers[0].plugins[0].arguments.sla-waiting-time"
    assert problem[2] == likely
    assert load(conf.replace(f": {text}", ": 3m")).tiers[0][0].arguments == (
        ("sla-waiting-time", "3m"),
    )
