"""Ctrl-C and `kill` during a search: the first requests a stop, the second ends the command."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_BY_SIGNAL: Final = 128


class Stop:
    """A stop request, and the signal that it came from."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self) -> bool:
        """Return whether a stop was requested."""
        return self._number != 0

    def request(self, number: int) -> None:
        """Request a stop on behalf of a signal."""
        self._number = number

    @property
    def code(self) -> int:
        """The exit code: 130 after Ctrl-C, 143 after `kill`, 0 without a stop request."""
        return _BY_SIGNAL + self._number if self._number else 0


@contextmanager
def stopping(report_progress: Callable[[], None]) -> Iterator[Stop]:
    """Yield the stop request; a second signal raises KeyboardInterrupt.

    `report_progress` is called at a request. Threads other than the first one get no signals.
    """
    stop = Stop()

    def handle_signal(number: int, frame: FrameType | None) -> None:
        if stop():
            raise KeyboardInterrupt
        stop.request(number)
        report_progress()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, handle_signal) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
