"""Print a table of passed and excepted scenarios at the end of the run, with the reasons."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.conformance.exceptions import MODES, read_exceptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.terminal import TerminalReporter

_OUTCOMES = {"passed": "passed", "xfailed": "excepted", "failed": "failed"}


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    seen = list(_seen(terminalreporter))
    if not seen:
        return
    counts = Counter((note["package"], note["mode"], outcome) for note, outcome in seen)
    reasons = read_exceptions()
    excepted = Counter((reasons[n["id"]][n["mode"]], n["mode"]) for n, o in seen if o == "excepted")
    terminalreporter.section("conformance: scenarios of Volcano")
    for line in (*_table(counts), "", *_reasons(excepted)):
        terminalreporter.write_line(line)


def _seen(reporter: TerminalReporter) -> Iterator[tuple[dict[str, str], str]]:
    """Yield the scenario and the outcome of each test."""
    for key, outcome in _OUTCOMES.items():
        for report in reporter.stats.get(key, []):
            for name, note in getattr(report, "user_properties", ()):
                if name == "conformance":
                    yield note, outcome


def _table(counts: Counter[tuple[str, str, str]]) -> Iterator[str]:
    outcomes = list(_OUTCOMES.values())
    head = "".join(f"{mode:^{11 * len(outcomes)}}" for mode in MODES)
    yield f"{'':<32}{head}".rstrip()
    yield f"{'part of Volcano':<32}" + "".join(f"{o:>11}" for _ in MODES for o in outcomes)
    packages = sorted({package for package, _, _ in counts})
    for package in packages:
        numbers = (counts[package, mode, o] for mode in MODES for o in outcomes)
        yield f"{package:<32}" + "".join(f"{n or '':>11}" for n in numbers)
    sums = (sum(counts[p, mode, o] for p in packages) for mode in MODES for o in outcomes)
    yield f"{'in total':<32}" + "".join(f"{n:>11}" for n in sums)


def _reasons(excepted: Counter[tuple[str, str]]) -> Iterator[str]:
    yield f"{'excepted':>10}  " + " / ".join(MODES)
    for reason in sorted({reason for reason, _ in excepted}):
        numbers = " / ".join(str(excepted[reason, mode]) for mode in MODES)
        yield f"{numbers:>10}  {reason}"
