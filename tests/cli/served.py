"""A helper that runs a service command without starting the service."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from click.testing import CliRunner

from optsched.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    import pytest
    from click.testing import Result

S = TypeVar("S")


class Served(Generic[S]):
    """A service command, and the settings with which its service would have run."""

    def __init__(self, word: str) -> None:
        self._word = word
        self.settings: list[S] = []
        self.error: Exception | None = None

    async def run(self, settings: S) -> None:
        """Record the settings in place of a service that runs until it is stopped."""
        self.settings.append(settings)
        if self.error is not None:
            raise self.error

    def invoke(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, [self._word, *arguments])

    def told(self, *arguments: str) -> S:
        """Return the settings that the service would get for the given arguments."""
        result = self.invoke(*arguments)
        assert result.exit_code == 0, result.output
        return self.settings[-1]

    def complaint(self, *arguments: str, code: int = 2) -> str:
        """Return the error output for invalid arguments, and check that no service started."""
        before = list(self.settings)
        result = self.invoke(*arguments)
        assert result.exit_code == code, result.output
        assert self.error is not None or self.settings == before
        return result.stderr


@contextmanager
def served(word: str, behind: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served[S]]:
    """Yield a service command whose service does not run; restore the log handlers."""
    command: Served[S] = Served(word)
    monkeypatch.setattr(behind, "run", command.run)
    log = logging.getLogger("optsched")
    before, level = log.handlers[:], log.level
    yield command
    log.handlers[:] = before
    log.setLevel(level)
