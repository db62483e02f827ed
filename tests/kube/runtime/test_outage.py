"""A fault of the server is reported once, for all requests that fail because of it."""

from __future__ import annotations

import pytest

from optsched.kube.client.errors import (
    Expired,
    Forbidden,
    NotFound,
    ServerFault,
    TooMany,
    Unreachable,
)
from optsched.kube.runtime.lifecycle import Outage

FAULTS = (Unreachable("refused"), ServerFault(503, "", ""), TooMany(429, "", "", None))


@pytest.mark.parametrize("error", FAULTS)
def test_what_fails_together_is_one_fault(error: Unreachable | ServerFault | TooMany) -> None:
    outage = Outage()
    assert outage.record_failure("pods", error)
    assert not outage.record_failure("lease", FAULTS[0])
    assert not outage.record_failure("pods", error)
    outage.record_success("pods")
    assert outage.is_active
    assert not outage.record_failure("nodes", error)
    for about in ("lease", "nodes"):
        outage.record_success(about)
    assert not outage.is_active
    assert outage.record_failure("nodes", error)


def test_other_errors_are_reported_each_for_itself() -> None:
    outage = Outage()
    assert outage.record_failure("pods", FAULTS[0])
    for error in (NotFound(404, "", ""), Forbidden(403, "", "")):
        assert outage.record_failure("pods", error)
    # The server has responded, so the outage is over.
    assert not outage.is_active


def test_a_server_that_initializes_its_storage_after_a_restart_is_the_same_fault() -> None:
    """The watch ends, its resource version has expired, and the list is refused for a while."""
    outage = Outage()
    expired, initializing = Expired(410, "Expired", ""), TooMany(429, "TooManyRequests", "")
    assert outage.record_failure("hypernodes", FAULTS[0])
    assert not outage.record_failure("pods", FAULTS[0])
    for about in ("pods", "hypernodes"):
        assert outage.record_failure(about, expired), "an expired version is reported, as before"
    outage.record_success("pods")
    assert not outage.record_failure("hypernodes", initializing)
    outage.record_success("hypernodes")
    assert not outage.is_active
    # Without an outage, an expired version begins none.
    assert outage.record_failure("pods", expired)
    assert not outage.is_active


def test_what_is_no_longer_tried_does_not_hide_the_next_fault() -> None:
    outage = Outage()
    assert outage.record_failure("a job", FAULTS[0])
    outage.retain(lambda about: about == "pods")
    assert outage.record_failure("pods", FAULTS[0])
