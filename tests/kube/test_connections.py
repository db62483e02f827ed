"""No request waits for a connection, so that binds delay neither lease renewals nor events."""

from __future__ import annotations

from optsched.controllers.job.reconcile import Options as JobOptions
from optsched.controllers.registry import Options, all_controllers
from optsched.formats.snapshots.assembly import READ_KINDS
from optsched.kube.client.client import CONNECTIONS
from optsched.kube.controllers import executor
from optsched.kube.runtime import events
from optsched.kube.scheduler import binder, evictor, process, volume_binder
from tests.support.vcjobs import KEYS

LEASE = 1
OTHERS = 4
"""Reads of the policy, the device table and metrics, which follow one another."""


def test_the_scheduler_has_a_connection_for_each_concurrent_request() -> None:
    writes = 2 * process.WRITES + events.MAX_CONCURRENT
    victims = evictor.MAX_CONCURRENT
    binds = binder.MAX_CONCURRENT + volume_binder.MAX_CONCURRENT
    assert len(READ_KINDS) + binds + victims + writes + LEASE + OTHERS <= CONNECTIONS


def test_the_controllers_have_a_connection_for_each_concurrent_request() -> None:
    controllers = all_controllers(Options(JobOptions(lambda: KEYS)))
    kinds = {kind for each in controllers for kind in each.kinds}
    writes = executor.MAX_CONCURRENT + events.MAX_CONCURRENT
    # Some kinds have a watch for each of two scopes.
    assert 2 * len(kinds) + writes + LEASE + OTHERS <= CONNECTIONS
