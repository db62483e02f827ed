"""Fuzz every parser with many mutated inputs, and print how to reproduce each
finding: `make fuzz`.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.fuzz.parsers import PARSER_OF, PARSERS
from tests.fuzz.run import check_many

CHUNK = 2000


def _findings(name: str, seed: int, numbers: range) -> list[str]:
    return [str(finding) for finding in check_many(PARSER_OF[name], seed, numbers)]


def main() -> int:
    """Print the findings, and return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20_000, help="inputs in all")
    parser.add_argument("--parser", choices=sorted(PARSER_OF), help="this one alone")
    parser.add_argument("--only", type=int, help="the input of that number alone")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    names = [given.parser] if given.parser else [each.name for each in PARSERS]
    each = -(-given.count // len(names))
    numbers = range(each) if given.only is None else range(given.only, given.only + 1)
    chunks = [
        (name, given.seed, numbers[start : start + CHUNK])
        for start in range(0, len(numbers), CHUNK)
        for name in names
    ]
    num_findings = 0
    with ProcessPoolExecutor(given.jobs) as pool:
        for found in pool.map(_findings, *zip(*chunks, strict=True)):
            num_findings += len(found)
            for finding in found:
                print(finding, flush=True)
    print(f"{len(names)} readers, {len(names) * len(numbers)} inputs, {num_findings} findings")
    return 1 if num_findings else 0


if __name__ == "__main__":
    sys.exit(main())
