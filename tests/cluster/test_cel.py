"""Device selectors: their meaning, their evaluation errors, and invalid expressions."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.cluster.cel import MOST_CHARACTERS, CelError, Unsupported, compile_selector
from optsched.cluster.dra_devices import DeviceId, PooledDevice, Version

DEVICE = PooledDevice(
    DeviceId("gpu.example.com", "pool", "d0"),
    (
        ("gpu.example.com/cores", 64),
        ("gpu.example.com/ecc", True),
        ("gpu.example.com/model", "A100-40"),
        ("gpu.example.com/version", Version("1.2.3")),
        ("other.com/slot", "x"),
    ),
    (("gpu.example.com/memory", "40Gi"),),
).properties
OWN = 'device.attributes["gpu.example.com"]'


def selects(text: str) -> bool:
    return compile_selector(text).selects(DEVICE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True),
        ("!true", False),
        ("!!true", True),
        ("device.driver == 'gpu.example.com'", True),
        ('device.driver != "gpu.example.com"', False),
        (f"{OWN}.ecc", True),
        (f"{OWN}['ecc'] && {OWN}.cores >= 64", True),
        (f"{OWN}.cores > 64 || {OWN}.cores < 10", False),
        (f"{OWN}.cores == '64'", False),
        (f"{OWN}.model in ['A100-40', 'H100']", True),
        (f"'model' in {OWN}", True),
        ("'model' in device.attributes['nobody.com']", False),
        (f"has({OWN}.model) && !has({OWN}.gone)", True),
        (f"{OWN}.model.startsWith('A100') && {OWN}.model.endsWith('40')", True),
        (f"{OWN}.model.contains('H')", False),
        ("device.capacity['gpu.example.com'].memory.compareTo(quantity('40Gi')) == 0", True),
        ("device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('39Gi'))", True),
        ("device.capacity['gpu.example.com'].memory.isLessThan(quantity('40Gi'))", False),
        ("device.capacity['gpu.example.com'].memory >= quantity('40960Mi')", True),
        ("(true || false) && (false || true)", True),
        (f"false && {OWN}.gone == 1", False),
        (f"{OWN}.gone == 1 || true", True),
        ("device.attributes['other.com'].slot == 'x'", True),
    ],
)
def test_what_is_selected(text: str, expected: bool) -> None:
    assert selects(text) is expected


@pytest.mark.parametrize(
    "text",
    [
        f"{OWN}.gone",
        "device.attributes['nobody.com'].healthy",
        f"{OWN}.model",
        f"{OWN}.model > 3",
        f"{OWN}.version == '1.2.3'",
        f"3 in {OWN}.model",
        "device.capacity['gpu.example.com'].memory >= quantity('much')",
        f"{OWN}.cores.startsWith('6')",
        f"{OWN}.gone == 1 && true",
        f"{OWN}.ecc.more",
    ],
)
def test_what_fails_on_a_device(text: str) -> None:
    with pytest.raises(CelError):
        selects(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "its end"),
        ("device", "its end"),
        ("device.name == 'x'", "device.name"),
        ("semver('1.0.0')", "semver"),
        (f"{OWN}.model.matches('A.*')", "matches()"),
        ("[1].exists(x, x == 1)", "exists()"),
        ("true ? 1 : 2", "?"),
        ("1 + 1 == 2", "+"),
        ("1.5 < 2.0", "1.5"),
        ("(true", "its end"),
        ("true true", "true"),
        ("'a\\n' == 'b'", "'a"),
        ("(" * 60 + "true" + ")" * 60, "nested too deeply"),
        ("x" * (MOST_CHARACTERS + 1), "longer"),
    ],
)
def test_what_is_refused_as_a_whole(text: str, named: str) -> None:
    with pytest.raises(Unsupported, match=r"not supported|nested|longer") as found:
        compile_selector(text)
    assert named in str(found.value)


TOKENS = [OWN, ".", "model", "cores", "==", "&&", "||", "!", "(", ")", "[", "]", "'x'", "7", "in"]


@given(st.lists(st.sampled_from(TOKENS)).map(" ".join) | st.text(max_size=30))
def test_nothing_else_can_happen(text: str) -> None:
    with suppress(CelError, Unsupported):
        assert isinstance(selects(text), bool)
