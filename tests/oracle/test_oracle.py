"""A small part of the oracle with fixed draws; `make oracle SEED=N` draws others."""

from __future__ import annotations

import pytest

from tests.oracle.known import KNOWN
from tests.oracle.runner import Tally, run_cases
from tests.support.effort import EFFORT

SEED, COUNT = 15, 96


@pytest.fixture(scope="module")
def tally() -> Tally:
    return run_cases(SEED, range(COUNT * EFFORT))


def test_no_finding_that_is_not_known(tally):
    for kind, number in sorted(tally.by_kind.items()):
        most, reason = KNOWN.get(kind, (0, "not known"))
        print(f"{number} (at most {most}): {kind}: {reason}")
    beyond = [
        f"{kind}: {number} findings, {KNOWN.get(kind, (0, ''))[0]} known: "
        + "; ".join(
            f"make oracle SEED={SEED} ONLY={case.number} ({finding.model})"
            for case, finding in tally.found
            if finding.kind == kind
        )
        for kind, number in tally.by_kind.items()
        if number > KNOWN.get(kind, (0, ""))[0] * EFFORT
    ]
    assert not beyond, "\n".join(beyond)


def test_every_family_is_decided(tally):
    assert {family for family, _ in tally.runs} == {
        "packing",
        "queues",
        "running",
        "relations",
        "topology",
        "shared",
    }
    assert sum(tally.runs.values()) >= 160
