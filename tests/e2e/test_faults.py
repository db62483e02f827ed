"""Short schedules of faults; `make e2e-faults` plays others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.run import Run
from tests.faults.schedule import SHORT, draw_schedule, draw_waves

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.local.plane import ControlPlane
    from tests.support.live import Site

pytestmark = pytest.mark.e2e


def test_what_must_hold_holds_under_faults(
    control_plane: ControlPlane, site: Site, tmp_path: Path
) -> None:
    schedule = draw_schedule(1, 4.0, every_s=1.0, kinds=SHORT)
    result = Run(control_plane, site, schedule, tmp_path, 0.05).play()
    assert result.problems == []
    assert result.num_binds > 0


def test_a_scheduler_killed_between_writes_of_a_plan_leaves_nothing_half(
    control_plane: ControlPlane, site: Site, tmp_path: Path
) -> None:
    """Between two binds of a gang, and between two evictions for another."""
    schedule = draw_waves(1)
    result = Run(control_plane, site, schedule, tmp_path, 0.0).play()
    assert result.problems == []
    assert result.missed == ()
    assert result.num_evictions > 0
