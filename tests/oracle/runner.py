"""Draw clusters by number, check them, and store findings that can be replayed from a file."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tests.oracle.chains import check_calm, check_history, check_rest, draw_period
from tests.oracle.checks import check_session, guarded
from tests.oracle.clusters import FAMILIES, MEDIUM, MIXED, SMALL, draw_cluster
from tests.oracle.metamorphic import check_metamorphic, check_roomier, check_split
from tests.oracle.proofs import check_proof, check_value, worker
from tests.oracle.sessions import Decided

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.oracle.checks import Finding
    from tests.oracle.manifests import Cluster

MODELS = (
    "volcano-default",
    "crater",
    "capacity-hierarchical",
    "max-throughput",
    "drf-lexicographic",
    "min-fragmentation",
    "volcano-compatible",
)
GREEDY = "volcano-compatible"
_OWN = {"topology": "topology-first", "shared": "gpus-shared"}
_EVERY = 25
"""The interval of medium clusters among the clusters of a family."""


@dataclass(frozen=True)
class Case:
    """A cluster by number, with its family, its size and its models."""

    seed: int
    number: int
    is_mixed: bool = False

    @property
    def family(self) -> str:
        """The family of the cluster, in rotation unless the cluster is mixed."""
        return MIXED if self.is_mixed else list(FAMILIES)[self.number % len(FAMILIES)]

    @property
    def is_small(self) -> bool:
        """Whether the cluster is small enough for exact checks."""
        return self.number // len(FAMILIES) % _EVERY != _EVERY - 1

    @property
    def models(self) -> tuple[str, ...]:
        """Two of the models in rotation, or one of them and the model of the family."""
        turn = self.number // len(FAMILIES)
        if self.family == "shared":
            return (_OWN["shared"],)
        both = (MODELS[turn % len(MODELS)], MODELS[(turn + 3) % len(MODELS)])
        own = _OWN.get(self.family)
        return both if own is None else (own, both[0])

    @property
    def command(self) -> str:
        """The command that replays the case."""
        family = f" FAMILY={MIXED}" if self.is_mixed else ""
        return f"make oracle SEED={self.seed} ONLY={self.number}{family}"

    def draw(self) -> Cluster:
        """Return the cluster of the case."""
        return draw_cluster(self.family, self.seed, self.number, SMALL if self.is_small else MEDIUM)


@dataclass
class Tally:
    """The number of decided clusters by model, the findings, and the open cases.

    `cpu_s` is the CPU time of both processes.
    """

    clusters: int = 0
    cpu_s: float = 0.0
    runs: Counter[tuple[str, str]] = field(default_factory=Counter)
    open: Counter[str] = field(default_factory=Counter)
    found: list[tuple[Case, Finding]] = field(default_factory=list)

    @property
    def by_kind(self) -> Counter[str]:
        """The number of findings by kind."""
        return Counter(finding.kind for _, finding in self.found)


def run_case(
    case: Case, models: tuple[str, ...] | None = None
) -> Iterator[tuple[str, list[Finding]]]:
    """Yield the findings of a case by model.

    A session decides every case. Half of the small cases are compared with the joint model. The
    other half is compared with changed clusters, or over several sessions.
    """
    cluster = case.draw()
    turn = case.number // len(FAMILIES)
    for model in models or case.models:
        checks = [check_session]
        if case.is_small and model != GREEDY and turn % 2 == 0:
            # Terminating pods run in the joint model, so its values of broken gangs differ.
            checks += [check_proof] if case.is_mixed else [check_proof, check_value]
        if case.is_small and turn % 4 == 1:
            checks += [check_metamorphic, check_roomier, check_split]
        if case.is_small and turn % 4 == 3:
            seed = f"{case.seed}/{case.number}"
            history = partial(check_history, seed=seed, period_s=draw_period(seed))
            checks += [check_calm, history]
        if not case.is_small:
            checks.append(check_rest)
        decided = Decided(cluster, model)
        yield model, [f for check in checks for f in guarded(model, partial(check, decided))]


def run_cases(seed: int, numbers: range, *, is_mixed: bool = False) -> Tally:
    """Run all cases with the given numbers."""
    tally = Tally()
    begun_s = time.process_time() + worker().cpu_s
    for number in numbers:
        case = Case(seed, number, is_mixed)
        tally.clusters += 1
        for model, findings in run_case(case):
            tally.runs[case.family, model] += 1
            tally.found += [(case, finding) for finding in findings if not finding.is_open]
            tally.open.update(finding.kind for finding in findings if finding.is_open)
    tally.cpu_s += time.process_time() + worker().cpu_s - begun_s
    return tally


def keep_finding(folder: Path, case: Case, finding: Finding) -> Path:
    """Write the instance of a finding, and a text with the finding and its commands."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{case.seed}-{case.number}-{finding.model}-{finding.kind.replace(' ', '-')}"
    path = folder / f"{name}.json"
    case.draw().write(path)
    text = (
        f"{finding.kind}, {case.family}, {finding.model}\n\n{finding.text}\n\n"
        f"{case.command}\n"
        f"optsched solve {path} --model {finding.model} --deterministic\n"
    )
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    return path
