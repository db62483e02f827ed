"""A fault of the server is reported once, whatever fails because of it."""

from __future__ import annotations

import pytest

from optsched.kube.client.errors import Forbidden, NotFound, ServerFault, TooMany, Unreachable
from optsched.kube.runtime.outage import Outage

FAULTS = (Unreachable("refused"), ServerFault(503, "", ""), TooMany(429, "", "", None))


@pytest.mark.parametrize("error", FAULTS)
def test_what_fails_together_is_one_fault(error: Unreachable | ServerFault | TooMany) -> None:
    outage = Outage()
    assert outage.is_new("pods", error)
    assert not outage.is_new("lease", FAULTS[0])
    assert not outage.is_new("pods", error)
    outage.works("pods")
    assert outage.is_on
    assert not outage.is_new("nodes", error)
    for about in ("lease", "nodes"):
        outage.works(about)
    assert not outage.is_on
    assert outage.is_new("nodes", error)


def test_other_errors_are_reported_each_for_itself() -> None:
    outage = Outage()
    assert outage.is_new("pods", FAULTS[0])
    for error in (NotFound(404, "", ""), Forbidden(403, "", "")):
        assert outage.is_new("pods", error)
    # The server has answered: nothing fails because of it any more.
    assert not outage.is_on


def test_what_is_no_longer_tried_does_not_hide_the_next_fault() -> None:
    outage = Outage()
    assert outage.is_new("a job", FAULTS[0])
    outage.keep(lambda about: about == "pods")
    assert outage.is_new("pods", FAULTS[0])
