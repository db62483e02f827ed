"""Feed parsers with mutated inputs, and report findings with a command that reproduces them."""

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
"""The interval of inputs with counted steps, because counting makes an input ten times slower."""
HANGS_S: Final = 60
"""The CPU seconds after which an input without counted steps is a hang."""


class StepsError(Exception):
    """An error of a parser that executes more lines than its input allows."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An undocumented error or an excess of steps of a parser."""

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
    """Return the input for a seed and an index."""
    random = Random(f"{seed}/{parser.name}/{index}")
    seeds = parser.seeds()
    begun = random.choice(seeds)
    if index < len(seeds):
        return seeds[index]
    if isinstance(begun, str):
        return mutate_text(begun, random, [each for each in seeds if isinstance(each, str)])
    return mutate_object(begun, random, seeds)


def check(parser: Parser, seed: int, index: int, folder: Path) -> Finding | None:
    """Return the finding for one input, if any."""
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
    """Yield the findings for a range of inputs.

    An input that hangs ends the process.
    """
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
    """Raise StepsError after more than `most` Python lines, or never if `most` is 0."""
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
