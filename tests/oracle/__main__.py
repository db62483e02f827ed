"""Draw clusters, check them, and write the findings: `python -m tests.oracle --seed N`."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random

from tests.oracle.clusters import MIXED
from tests.oracle.runner import Case, Tally, keep_finding, run_case, run_cases

_CHUNK, _TOLD = 6, 25


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("--seed", type=int, default=Random().randrange(10**6))
    parser.add_argument("--count", type=int, default=600, help="how many clusters")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--only", type=int, help="the number of a single one, told in full")
    parser.add_argument("--family", choices=[MIXED], help="unless given, all others take turns")
    parser.add_argument("--model", action="append", help="for --only; unless given, its own")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, help="start no clusters after this time")
    parser.add_argument("--out", type=Path, default=Path("oracle-findings"))
    return parser.parse_args()


def main() -> int:
    """Run the checks, and return 1 if there are findings."""
    options = _parsed()
    if options.only is not None:
        return _one(Case(options.seed, options.only, options.family == MIXED), options)
    begun = time.monotonic()
    tally = Tally()
    stop = options.first + options.count
    chunks = [range(n, min(n + _CHUNK, stop)) for n in range(options.first, stop, _CHUNK)]
    with ProcessPoolExecutor(options.jobs) as pool:
        waiting = [pool.submit(_chunk, options, chunk, _left(options, begun)) for chunk in chunks]
        for future in waiting:
            part = future.result()
            tally.runs += part.runs
            tally.open += part.open
            tally.clusters += part.clusters
            tally.cpu_s += part.cpu_s
            if part.clusters and tally.clusters % (_TOLD * _CHUNK) == 0:
                print(f"{tally.clusters} clusters, {tally.cpu_s:.0f} CPU s", flush=True)
            for case, finding in part.found:
                tally.found.append((case, finding))
                path = keep_finding(options.out, case, finding)
                first = finding.text.partition("\n")[0]
                print(f"{finding.kind} ({case.family}, {finding.model}): {first}")
                print(f"  {path}; {case.command}", flush=True)
    _summarise(tally, options.seed, time.monotonic() - begun)
    return 1 if tally.found else 0


def _left(options: argparse.Namespace, begun: float) -> float | None:
    """Return the time at which all processes stop, on their common clock."""
    return None if options.seconds is None else begun + options.seconds


def _chunk(options: argparse.Namespace, numbers: range, until: float | None) -> Tally:
    if until is not None and time.monotonic() > until:
        return Tally()
    return run_cases(options.seed, numbers, is_mixed=options.family == MIXED)


def _one(case: Case, options: argparse.Namespace) -> int:
    print(f"seed {case.seed}, number {case.number}: {case.family}")
    found = False
    for model, findings in run_case(case, tuple(options.model or ()) or None):
        print(f"{model}: {len(findings)} findings")
        for finding in findings:
            found |= not finding.is_open
            print(f"- {finding.kind}: {finding.text}")
            print(f"  {keep_finding(options.out, case, finding)}")
    return 1 if found else 0


def _summarise(tally: Tally, seed: int, seconds: float) -> None:
    checked = f"{tally.clusters} clusters, {sum(tally.runs.values())} sessions checked"
    print(f"seed {seed}: {checked} in {seconds:.0f} s, {tally.cpu_s:.0f} CPU s")
    for (family, model), runs in sorted(tally.runs.items()):
        print(f"  {family:10} {model:24} {runs}")
    for kind, number in sorted(tally.by_kind.items()):
        print(f"found {number:4} × {kind}")
    for kind, number in sorted(tally.open.items()):
        print(f"seen {number:5} × {kind}")
    if not tally.found:
        print("found nothing")


if __name__ == "__main__":
    sys.exit(main())
