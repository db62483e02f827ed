"""The first signal lets a command end in order; the second one ends it immediately."""

from __future__ import annotations

import signal

import pytest

from optsched.cli.offline.solve_model import stop_on_signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_one_ends_it(number: signal.Signals, code: int) -> None:
    told: list[str] = []
    before = signal.getsignal(number)
    with stop_on_signals(lambda: told.append("stopping")) as stop:
        assert (stop(), stop.code) == (False, 0)
        signal.raise_signal(number)
        assert (stop(), stop.code, told) == (True, code, ["stopping"])
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert told == ["stopping"]
    assert signal.getsignal(number) is before
