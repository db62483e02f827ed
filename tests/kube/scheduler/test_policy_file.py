from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.kube.scheduler.session_services import PolicyFile
from optsched.policy.load import PolicyWatch
from optsched.policy.policy import SolverKind
from tests.kube.fakes import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

GANG = "actions: allocate\ntiers: [{plugins: [{name: gang}]}]\n"
DRF = "actions: allocate\ntiers: [{plugins: [{name: gang}, {name: drf}]}]\n"
BROKEN = "actions: alocate\ntiers: []\n"
GREEDY = f"{GANG}solver: none\n"


class Desk:
    """A policy file and its reader."""

    def __init__(
        self, text: str, solver: SolverKind | None = None, period_s: float | None = None
    ) -> None:
        self.text = text
        self.clock = FakeClock()
        self.verdicts: list[str] = []
        watch = PolicyWatch("policy.conf", self._read)
        self.policies = PolicyFile(
            watch, self.clock, self.verdicts.append, solver=solver, period_s=period_s
        )

    def _read(self, _: Path) -> str:
        return self.text

    def plugins(self, text: str | None = None) -> list[str]:
        """Return the active plugins one second after a change of the file."""
        self.text = self.text if text is None else text
        self.clock.seconds += 1
        return [plugin.name for tier in self.policies.current().tiers for plugin in tier]


def test_a_changed_file_comes_into_force_within_a_second() -> None:
    desk = Desk(GANG)
    desk.text = DRF
    before = desk.policies.current()
    assert desk.policies.current() is before
    assert desk.plugins() == ["gang", "drf"]
    assert desk.verdicts == [""]


def test_the_policy_is_the_same_object_as_long_as_its_file_is() -> None:
    desk = Desk(GANG)
    before = desk.policies.current()
    desk.clock.seconds += 100
    assert desk.policies.current() is before


def test_the_last_good_policy_stays_and_what_is_wrong_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk(GANG)
    before = desk.policies.current()
    assert desk.plugins(BROKEN) == ["gang"]
    assert desk.plugins() == ["gang"]
    assert desk.policies.current() is before
    (verdict,) = desk.verdicts
    assert 'policy.conf:1:10: actions: there is no action "alocate"' in verdict
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1
    assert desk.plugins(DRF) == ["gang", "drf"]
    assert desk.verdicts[1:] == [""]


def test_a_solver_on_the_command_line_comes_before_the_policys_own() -> None:
    assert Desk(GANG, SolverKind.NONE).policies.current().solver is SolverKind.NONE
    assert Desk(GREEDY, SolverKind.CPSAT).policies.current().solver is SolverKind.CPSAT
    assert Desk(GREEDY).policies.current().solver is SolverKind.NONE


def test_the_command_lines_solver_holds_for_what_is_read_again() -> None:
    desk = Desk(GANG, SolverKind.NONE)
    desk.plugins(DRF)
    assert desk.policies.current().solver is SolverKind.NONE


def test_the_period_is_the_policys_unless_told_otherwise() -> None:
    assert Desk(GANG).policies.period_s == 1.0
    assert Desk(GANG, period_s=0.25).policies.period_s == 0.25


def test_a_short_period_reads_the_file_as_often() -> None:
    desk = Desk(GANG, period_s=0.25)
    before, desk.text = desk.policies.current(), DRF
    desk.clock.seconds += 0.25
    assert desk.policies.current() is not before
