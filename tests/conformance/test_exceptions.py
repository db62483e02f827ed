from __future__ import annotations

from tests.conformance.exceptions import BY_DESIGN, LATER, MODES, read_exceptions
from tests.conformance.scenarios import scenarios
from tests.support.shared import shared


def test_every_exception_is_about_a_scenario_and_says_why() -> None:
    shared("conformance")
    exceptions = read_exceptions()
    assert sorted(exceptions.keys() - {s.id for s in scenarios()}) == []
    for reasons in exceptions.values():
        assert reasons
        assert reasons.keys() <= set(MODES)
        assert all(r.startswith((LATER, BY_DESIGN)) and len(r) > 25 for r in reasons.values())


def test_exceptions_stand_in_order_so_that_one_is_found() -> None:
    assert list(read_exceptions()) == sorted(read_exceptions())
