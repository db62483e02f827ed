"""Feeds readers with mutated inputs; a finding says how to see it again."""

from __future__ import annotations

import signal
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.fuzz.mutations import mutate_object, mutate_text, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fuzz.parsers import Parser

COUNTED: Final = 20
"""One input of so many has its steps counted, which makes it ten times as slow."""
HANGS_S: Final = 60
"""CPU seconds after which an input whose steps are not counted counts as one that hangs."""


class StepsError(Exception):
    """A reader that runs more lines than its input allows."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A reader that raised what it does not document, or took too many steps."""

    parser: str
    seed: int
    index: int
    error: BaseException
    value: object

    def __str__(self) -> str:
        kind = type(self.error).__name__
        again = f"make fuzz SEED={self.seed} PARSER='{self.parser}' ONLY={self.index}"
        said = str(self.error)[:500]
        return f"{self.parser}: {kind}: {said}\n  {again}\n  input: {shown(self.value)}"


def input_of(parser: Parser, seed: int, index: int) -> Any:
    """The input of that number."""
    random = Random(f"{seed}/{parser.name}/{index}")
    seeds = parser.seeds()
    begun = random.choice(seeds)
    if index < len(seeds):
        return seeds[index]
    if isinstance(begun, str):
        return mutate_text(begun, random, [each for each in seeds if isinstance(each, str)])
    return mutate_object(begun, random, seeds)


def check(parser: Parser, seed: int, index: int, folder: Path) -> Finding | None:
    """What goes wrong with one input."""
    value = input_of(parser, seed, index)
    size = len(value) if isinstance(value, str) else len(repr(value))
    most = parser.steps[1] + parser.steps[0] * size if index % COUNTED == 0 else 0
    try:
        with _steps(most):
            parser.read(value, folder)
    except parser.errors:
        return None
    except Exception as error:
        return Finding(parser.name, seed, index, error, value)
    return None


def check_many(parser: Parser, seed: int, numbers: range) -> Iterator[Finding]:
    """What goes wrong with some inputs; an input that hangs ends the process."""
    with tempfile.TemporaryDirectory() as name:
        for index in numbers:
            signal.setitimer(signal.ITIMER_PROF, HANGS_S)
            try:
                finding = check(parser, seed, index, Path(name))
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            if finding is not None:
                yield finding


@contextmanager
def _steps(most: int) -> Iterator[None]:
    """Raise StepsError once more than some lines of Python have run; 0 for no limit."""
    left = most

    def count(*_: object) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise StepsError(f"more than {most} lines of Python")
        return count

    before = sys.gettrace()
    if most:
        sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)
