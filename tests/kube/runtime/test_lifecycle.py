"""Tests of the life cycle that all long-running processes share."""

from __future__ import annotations

import gc

from optsched.cli.base.session_context import collect_while_serving
from optsched.kube.runtime.lifecycle import freeze_startup_objects


def test_what_exists_at_the_start_is_left_out_of_collections() -> None:
    kept = {"kept": []}
    garbage = {}
    garbage["itself"] = garbage
    del garbage
    try:
        freeze_startup_objects()
        assert not any(each is kept for each in gc.get_objects())
        assert gc.get_freeze_count() > 10_000
        assert gc.collect() == 0
        assert len(gc.get_objects()) < 10_000
    finally:
        gc.unfreeze()
    assert any(each is kept for each in gc.get_objects())


def test_full_collections_come_while_a_scheduler_serves() -> None:
    """Cyclic garbage of a session is freed before a few million further objects are created."""
    before, default = gc.get_threshold(), (700, 10, 10)
    try:
        gc.set_threshold(*default)
        collect_while_serving()
        young, old, full = gc.get_threshold()
    finally:
        gc.set_threshold(*before)
    assert 0 < young * old * full <= 2_000_000
    assert young > default[0]
