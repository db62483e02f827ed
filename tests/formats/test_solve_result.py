"""Results of solves survive a round trip through files, and every mistake gets a message."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optsched.cluster.decisions import Incumbent, Plan, Progress, SolveStatus, relative_gap
from optsched.formats.plan import plan_document, published_schema, write_plan
from optsched.formats.solve_result import (
    FileSum,
    InstanceIdentity,
    ModelIdentity,
    Parameters,
    SolveResult,
    checksum,
    encode_result,
    parse_result,
    read_result,
    write_result,
    write_results,
)
from tests.formats.test_plan import EXAMPLE as PLAN
from tests.formats.test_plan import actions, certificates, check, keys, levels, numbers, texts
from tests.support.effort import num_examples

SCHEMA = published_schema("SolveResult")
EXAMPLE = SolveResult(
    ended=SolveStatus.LIMIT,
    versions={"optsched": "1", "python": "3"},
    command=("optsched", "solve", "c.yaml"),
    instance=InstanceIdentity("c.yaml", (FileSum("c.yaml", checksum(b"nodes")),)),
    model=ModelIdentity("mine", "mine.yaml", "kind: SchedulingModel\n"),
    parameters=Parameters("cpsat", 10.0, 10.0, 0.01, 7, 2, ("volcano",)),
    plan=plan_document(PLAN),
    progress=(Progress("victims", 0.25, 3, None), Progress("victims", 1.5, 1, 0, 2)),
    incumbents=(Incumbent(1, {"ml/a-0": "n1"}, PLAN.certificate.levels),),
)


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return the example with another value at a path of keys and positions."""
    whole = copy.deepcopy(encode_result(EXAMPLE))
    *way, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    part: Any = whole
    for step in way:
        part = part[step]
    part[last] = value
    return whole


# --- there and back ------------------------------------------------------------------------------

sums = st.builds(FileSum, texts, texts.map(checksum))
files = st.lists(sums, max_size=2).map(tuple)
seconds = st.floats(0, 1e6)
results = st.builds(
    SolveResult,
    st.sampled_from(SolveStatus),
    st.dictionaries(texts, texts, max_size=2),
    st.lists(texts, max_size=3).map(tuple),
    st.builds(InstanceIdentity, texts, files),
    st.builds(ModelIdentity, texts, texts, texts.filter(bool), files),
    st.builds(
        Parameters,
        st.sampled_from(["cpsat", "none"]),
        st.none() | seconds,
        seconds,
        st.none() | seconds,
        numbers,
        numbers,
        st.lists(texts, max_size=2).map(tuple),
    ),
    st.none() | st.builds(Plan, actions.map(tuple), certificates).map(plan_document),
    st.lists(
        st.builds(Progress, texts, seconds, st.none() | numbers, st.none() | numbers, numbers),
        max_size=2,
    ).map(tuple),
    st.lists(
        st.builds(
            Incumbent,
            numbers,
            st.dictionaries(keys, texts, max_size=2),
            st.lists(levels, max_size=2).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
)


@settings(max_examples=num_examples(40))
@given(results)
def test_every_result_survives(result: SolveResult) -> None:
    found, errors = read_result(write_result(result))
    assert errors == ()
    assert found == result
    if result.plan is not None:
        assert check(json.loads(write_result(result)), SCHEMA) == []


def test_several_results_are_a_list_of_them() -> None:
    whole = json.loads(write_results((EXAMPLE, EXAMPLE)))
    assert whole["kind"] == "SolveResultList"
    assert [parse_result(item) for item in whole["items"]] == [(EXAMPLE, ())] * 2


def test_the_checksum_of_the_plan_is_that_of_its_file() -> None:
    assert EXAMPLE.plan_sha256 == checksum(write_plan(PLAN))


def test_checksums_of_instances_do_not_depend_on_the_order_of_files() -> None:
    a, b = FileSum("a", checksum("1")), FileSum("b", checksum("2"))
    assert InstanceIdentity("x", (a, b)).sha256 == InstanceIdentity("y", (b, a)).sha256
    assert InstanceIdentity("x", (a,)).sha256 != InstanceIdentity("x", (b,)).sha256


def test_levels_say_their_gaps() -> None:
    first, second = encode_result(EXAMPLE)["levels"]
    assert (first["gap"], first["relativeGap"]) == (0, 0.0)
    assert (second["gap"], second["relativeGap"]) == (None, None)
    assert relative_gap(-200, -198) == 0.01
    assert relative_gap(0, 3) == 3.0


def test_the_schema_lists_what_the_code_knows() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["title"] == "optsched.io/v1alpha1 SolveResult"
    fields, plan = SCHEMA["properties"], published_schema("Plan")
    assert fields["ended"]["enum"] == [each.value for each in SolveStatus]
    assert fields["plan"]["properties"] == plan["properties"]
    assert fields["plan"]["required"] == plan["required"]
    level = plan["properties"]["certificate"]["properties"]["levels"]["items"]
    assert fields["incumbents"]["items"]["properties"]["levels"]["items"] == level


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("kind", "Plan", 'kind: "Plan" is not one of SolveResult'),
        ("ended", "soon", 'ended: "soon" is not one of complete, limit, interrupted, running'),
        ("partial", False, "partial: false contradicts ended, which implies true"),
        ("planSha256", "0", 'planSha256: "0" contradicts plan, which implies "[0-9a-f]{64}"'),
        ("instance.sha256", "0", 'instance.sha256: "0" contradicts files'),
        ("model.text", "other", 'model.sha256: "[0-9a-f…]+ contradicts text and plugins'),
        ("model.text", None, "model.text is missing"),
        ("parameters.gap", "1%", 'parameters.gap: "1%" is not a number: write 0 or more'),
        ("parameters.deterministic", True, "parameters.deterministic: true contradicts timeLimit"),
        ("parameters.solver", "luck", 'parameters.solver: "luck" is not one of cpsat, none'),
        (
            "progress.0.seconds",
            -1,
            "progress.0..seconds: -1 is not a number: write 0 or more",
        ),
        ("progress.0.incumbent", 1.5, "progress.0..incumbent: 1.5 is not a whole number"),
        ("incumbents.0.levels.0.sense", "up", 'incumbents.0..levels.0..sense: "up" is not one of'),
        ("plan.binds", [], "plan.binds: \\[\\] is not a mapping of names to values"),
        ("plan.certificate.seconds", "1", 'plan.certificate.seconds: "1" is not a number of sec'),
        ("versions", 3, "versions: 3 is not a mapping"),
    ],
)
def test_mistakes_are_told_with_field_and_value(path: str, value: Any, message: str) -> None:
    found, errors = parse_result(changed(path, value))
    assert found is None
    assert any(re.match(message, str(error)) for error in errors), list(map(str, errors))


@pytest.mark.parametrize("source", ["", "{", "[]", "3", "null"])
def test_what_is_no_object_is_refused(source: str) -> None:
    found, errors = read_result(source)
    assert found is None
    assert errors
