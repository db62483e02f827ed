"""Tests of expensive claims, which a session postpones and names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from optsched.cluster import dra_devices as devices_module
from optsched.cluster.cel import MOST_PARTS, CelError, Unsupported, compile_selector
from optsched.cluster.dra_devices import (
    MOST_CHOICES,
    MOST_SELECTORS,
    MOST_TEXT,
    MOST_VERDICTS,
    DeviceClass,
    DeviceId,
    DeviceNeed,
    Devices,
    PooledDevice,
    evaluate_selectors,
)
from optsched.formats.snapshots.assembly import assemble
from optsched.plugins.devices import device_claims, device_matching
from optsched.plugins.devices.device_claims import DeviceClaims
from optsched.plugins.devices.device_matching import (
    STEPS_OF_SEARCH,
    Bond,
    Demand,
    Option,
    Steps,
    allocate_devices,
    options_of,
)
from optsched.problem.compile import compile_problem
from optsched.session.session import SessionContext, run_session
from tests.conformance.play import solving
from tests.formats.objects import (
    DRIVER,
    claiming,
    device_claim,
    device_class,
    device_slice,
    node,
    pod,
)
from tests.plugins.test_device_claims import POLICY, having

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.cel import Selector
    from optsched.cluster.dra_devices import DeviceClaimRequest

NUM_NODES, OF_NODE = 10, 8
MODEL = f"device.attributes['{DRIVER}'].model"


def pool(*models: str) -> Devices:
    found = [
        PooledDevice(DeviceId(DRIVER, "n", f"d{i}"), ((f"{DRIVER}/model", model),))
        for i, model in enumerate(models)
    ]
    return Devices(classes={"c": DeviceClass("c")}, on_node={"n": tuple(found)})


def need(*selectors: str, name: str = "r") -> DeviceNeed:
    return DeviceNeed(name, "c", selectors=selectors)


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of evaluated selectors, one entry per device."""
    found: list[str] = []

    def noted(text: str) -> Selector:
        found.append(text)
        return compile_selector(text)

    monkeypatch.setattr(devices_module, "compile_selector", noted)
    return found


def test_a_selector_is_evaluated_once_for_a_device(evaluated: list[str]) -> None:
    devices, text = pool("a", "b", "a"), f"{MODEL} == 'a'"
    for _ in range(3):
        assert devices.choices("n", need(text)) == ((0, 2), 1)
    assert evaluated == [text] * 3
    broken = f"{MODEL}x == 'a'"
    for _ in range(2):
        with pytest.raises(CelError, match="no such key: modelx"):
            devices.on_node["n"][0].meets(broken)
    assert evaluated.count(broken) == 1


def test_a_device_keeps_the_newest_outcomes() -> None:
    (device,) = pool("a").on_node["n"]
    texts = [f"{MODEL} == '{number}'" for number in range(MOST_VERDICTS + 1)]
    assert not any(map(device.meets, texts))
    assert not device.has_evaluated(texts[0])
    assert all(map(device.has_evaluated, texts[1:]))


def test_what_a_session_does_not_reach_is_left_to_the_next_one() -> None:
    devices = pool(*"ab" * 10)
    short, long = need(f"{MODEL} == 'a'"), need(f"{MODEL} == 'b' || {MODEL} == 'c'", name="long")
    cost = compile_selector(short.selectors[0]).cost
    asked = [("team", long), ("team", short)]
    first = evaluate_selectors(devices, asked, 25 * cost)
    assert first.postponed == {long}
    assert first.refuses(short) == ""
    assert first.refuses(long) == (
        "the selectors of request long are evaluated in a later session, "
        "because this session's limit is reached"
    )
    assert any(device.has_evaluated(long.selectors[0]) for device in devices.on_node["n"])
    # Devices cache their results, so that each session evaluates further.
    assert evaluate_selectors(devices, asked, 25 * cost).postponed == {long}
    assert not evaluate_selectors(devices, asked, 25 * cost).postponed
    assert evaluate_selectors(devices, asked, 0) is devices


def test_namespaces_take_turns() -> None:
    devices = pool(*"ab" * 10)
    crowd = [("crowd", need(f"{MODEL} == '{i}'")) for i in range(50)]
    mine = need(f"{MODEL} == 'mine-alone'")
    cost = 20 * compile_selector(mine.selectors[0]).cost
    found = evaluate_selectors(devices, [*crowd, ("small", mine)], 3 * cost)
    assert mine not in found.postponed
    assert len(found.postponed) > 40


def test_selectors_of_one_session_are_limited() -> None:
    devices = pool("a")
    many = [("team", need(f"{MODEL} == '{i}'")) for i in range(MOST_SELECTORS + 10)]
    assert len(evaluate_selectors(devices, many).postponed) == 10
    text = " || ".join([f"{MODEL} == 'a'"] * 150)
    long = [("team", need(f"{text} || {MODEL} == '{i:04d}'")) for i in range(100)]
    size = len(long[0][1].selectors[0])
    assert len(evaluate_selectors(pool("a"), long).postponed) == 100 - MOST_TEXT // size


def test_an_expression_has_so_many_words_and_no_larger_numbers(evaluated: list[str]) -> None:
    with pytest.raises(Unsupported, match=f"has more than {MOST_PARTS} tokens"):
        compile_selector("true" + "||true" * 1100)
    for number in (2**63, -(2**63) - 1, "9" * 5000):
        with pytest.raises(Unsupported, match="has a number that does not fit in 64 bits"):
            compile_selector(f"1 == {number}")
    assert compile_selector(f"{2**63 - 1} == {2**63 - 1}").selects(
        pool("a").on_node["n"][0].properties
    )


# --- choices -------------------------------------------------------------------------------------


def tied(num_wants: int, num_places: int, values: Sequence[int]) -> list[tuple[Option, ...]]:
    """Return one claim whose devices must have different attribute values."""
    want = Demand(tuple(range(num_places)), 1, "r")
    return [(Option((want,) * num_wants, (Bond(True, tuple(range(num_wants)), tuple(values)),)),)]


def test_a_search_ends_and_its_result_is_kept() -> None:
    # Six classes of devices by colour and size: two colours have the same size.
    colours = tuple(place % 6 for place in range(18))
    sizes = tuple(0 if p % 6 < 2 else 1 + (p // 6 + p) % 5 for p in range(18))
    demands = (Demand(tuple(range(18)), 1, "r"),) * 6
    bonds = tuple(Bond(True, tuple(range(6)), values) for values in (colours, sizes))
    asks, free = [(Option(demands, bonds),)], set(range(18))
    steps = Steps(10 * STEPS_OF_SEARCH)
    assert allocate_devices(asks, free, steps) is None
    assert steps.left == 9 * STEPS_OF_SEARCH
    assert steps.num_cut == {"search": 1}
    assert allocate_devices(asks, free, steps) is None
    assert steps.left == 9 * STEPS_OF_SEARCH
    assert steps.num_cut == {"search": 2}


@pytest.mark.parametrize(("num_wants", "is_served"), [(5, True), (6, False)])
def test_a_constraint_costs_as_many_steps_as_it_has_requests(
    num_wants: int, *, is_served: bool
) -> None:
    asks, free = tied(num_wants, 16, [place % 5 for place in range(16)]), set(range(16))
    steps = Steps(STEPS_OF_SEARCH)
    assert (allocate_devices(asks, free, steps) is not None) is is_served
    assert STEPS_OF_SEARCH - steps.left < 30
    assert not steps.num_cut


def test_nodes_with_the_same_devices_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def noted(devices: Devices, node: str, ask: DeviceClaimRequest) -> tuple[Option, ...]:
        looked.append(node)
        return options_of(devices, node, ask)

    monkeypatch.setattr(device_claims, "options_of", noted)
    claim = device_claim("c")
    claim["spec"]["devices"]["requests"] = requests(2)
    claim["spec"]["devices"]["constraints"] = [{"distinctAttribute": f"{DRIVER}/model"}]
    other = {"name": "d0", "attributes": {"model": {"string": "a"}}}
    more = [node("odd"), device_slice("odd", other)]
    found = assemble([*cluster(), *more, claim, pod("p", claiming("c"))]).snapshot
    problem = compile_problem(found)
    mask = DeviceClaims().mask(problem, 0)
    assert mask is not None
    names = [n.name for n in found.nodes]
    assert [name for name, fits in zip(names, mask, strict=True) if not fits] == ["odd"]
    assert sorted(looked) == ["n0", "odd"]


def test_searches_of_a_session_end_together() -> None:
    values = [place % 7 for place in range(14)]
    asks, free = tied(3, 14, values), set(range(14))
    tired = Steps(2)
    assert allocate_devices(asks, free, tired) is None
    assert tired.left == 0
    assert tired.num_cut == {"session": 1}
    # A later session finds an allocation that an earlier one did not find.
    found = allocate_devices(asks, free, Steps(STEPS_OF_SEARCH))
    assert found is not None
    assert len({values[place] for _, place in found[0]}) == 3
    assert allocate_devices(asks, free, Steps(0)) == found


def test_results_that_are_kept_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_matching, "MOST_KNOWN", 4)
    monkeypatch.setattr(device_matching, "_known", {})
    for number in range(2, 12):
        allocate_devices(tied(2, number, range(number)), set(range(number)))
    assert len(device_matching._known) == 4


def cluster() -> list[dict[str, Any]]:
    devices = [
        {"name": f"d{i}", "attributes": {"model": {"string": "ab"[i % 2]}}} for i in range(OF_NODE)
    ]
    names = [f"n{i}" for i in range(NUM_NODES)]
    slices = [device_slice(name, *devices) for name in names]
    return [device_class(), *(node(name) for name in names), *slices]


def requests(number: int, **more: Any) -> list[dict[str, Any]]:
    exactly = {"deviceClassName": DRIVER, "count": 1, **more}
    return [{"name": f"r{i}", "exactly": exactly} for i in range(number)]


def many_alternatives() -> dict[str, Any]:
    others = [{"name": f"v{i}", "deviceClassName": DRIVER, **having("a")} for i in range(8)]
    claim = device_claim("dear")
    asked = [{"name": f"r{i}", "firstAvailable": others} for i in range(8)]
    claim["spec"]["devices"]["requests"] = asked
    return claim


def many_bonds(number: int = 4) -> dict[str, Any]:
    claim = device_claim("dear")
    claim["spec"]["devices"]["requests"] = requests(number)
    bond = {"distinctAttribute": f"{DRIVER}/model"}
    claim["spec"]["devices"]["constraints"] = [bond]
    return claim


def many_selectors() -> dict[str, Any]:
    texts = [" || ".join([f"{MODEL} == 'x{i}'"] * 150) for i in range(60)]
    claim = device_claim("dear")
    selectors = [{"cel": {"expression": text}} for text in texts]
    claim["spec"]["devices"]["requests"] = [
        {"name": f"r{k}", "exactly": {"deviceClassName": DRIVER, "selectors": selectors[k:]}}
        for k in range(16)
    ]
    return claim


def test_a_claim_says_that_searches_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_claims, "STEPS_OF_SESSION", 0)
    monkeypatch.setattr(device_matching, "_known", {})
    snapshot = assemble([*cluster(), many_bonds(2), pod("dear", claiming("dear"))]).snapshot
    report = run_session(snapshot, POLICY, SessionContext())
    said = str(report.plan.pending["ns/pod:dear"])
    assert "the search steps of this session are used up, and a later session continues" in said
    assert report.trace.num_cut_searches["session"] > 0
    monkeypatch.undo()
    assert set(run_session(snapshot, POLICY, SessionContext()).plan.binds) == {"ns/dear"}


@pytest.mark.parametrize(
    ("claim", "why", "limits"),
    [
        (
            many_alternatives(),
            f"has {8**9} combinations of alternatives: at most {MOST_CHOICES}",
            set(),
        ),
        (many_bonds(), "had too few devices free: 4 of class", set()),
        (many_selectors(), "because this session's limit is reached", {"selectors"}),
    ],
)
def test_a_dear_claim_waits_and_others_start(
    claim: dict[str, Any], why: str, limits: set[str]
) -> None:
    pods = [pod("dear", claiming("dear")), pod("p", claiming("plain"))]
    for context in (SessionContext(), solving()):
        snapshot = assemble([*cluster(), claim, device_claim("plain"), *pods]).snapshot
        report = run_session(snapshot, POLICY, context)
        assert report.trace.violations == ()
        assert set(report.plan.binds) == {"ns/p"}
        assert why in str(report.plan.pending["ns/pod:dear"])
        assert report.trace.num_cut_searches.keys() == limits
        lines = [x for x in report.plan.certificate.limitations if "stopped by limits" in x]
        assert len(lines) == bool(limits)
        for limit in limits:
            number = report.trace.num_cut_searches[limit]
            assert number > 0
            assert f"{number} by {limit}" in lines[0]
            assert not report.plan.certificate.is_proved
