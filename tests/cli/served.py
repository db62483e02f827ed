"""Commands that serve a cluster, with nothing behind them."""

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
    """One of them, and what it would have run with."""

    def __init__(self, word: str) -> None:
        self._word = word
        self.settings: list[S] = []
        self.error: Exception | None = None

    async def run(self, settings: S) -> None:
        """In the place of what runs until it is told to stop."""
        self.settings.append(settings)
        if self.error is not None:
            raise self.error

    def invoke(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, [self._word, *arguments])

    def told(self, *arguments: str) -> S:
        """What it is told for some flags."""
        result = self.invoke(*arguments)
        assert result.exit_code == 0, result.output
        return self.settings[-1]

    def complaint(self, *arguments: str, code: int = 2) -> str:
        """What is said about flags that are wrong; nothing runs with them."""
        before = list(self.settings)
        result = self.invoke(*arguments)
        assert result.exit_code == code, result.output
        assert self.error is not None or self.settings == before
        return result.stderr


@contextmanager
def served(word: str, behind: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served[S]]:
    """A command with nothing behind it; the log goes back to where it was."""
    command: Served[S] = Served(word)
    monkeypatch.setattr(behind, "run", command.run)
    log = logging.getLogger("optsched")
    before, level = log.handlers[:], log.level
    yield command
    log.handlers[:] = before
    log.setLevel(level)
