"""Synthetic traces of jobs with random arrival times on a GPU cluster, reproducible from a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.api.wellknown import HOSTNAME
from optsched.cluster.snapshot import Node, Queue, uniform_gang
from optsched.cluster.task import TaskShape
from optsched.cluster.trace import Arrival, Trace
from optsched.units import CPU, GPU, MEMORY, PODS
from optsched.units.quantity import parse_decimal

if TYPE_CHECKING:
    from collections.abc import Mapping


_GIB: Final = 2**30
_MINUTE_MS: Final = 60_000
_SIZES: Final = (1, 2, 4, 8)
_SIZE_PARTS: Final = (0.7, 0.1, 0.15, 0.05)
_SHORT: Final = (1.5, 3.0)
_LONG: Final = (3.0, 4.0)
_LONG_PART: Final = 0.2


@dataclass(frozen=True)
class GavelTrace:
    """A trace of gangs with one GPU per task, drawn from the distributions of Gavel's generator.

    A gang has 1, 2, 4 or 8 tasks, with probability 0.7, 0.1, 0.15 or 0.05. A gang runs for 10^u
    minutes; u is uniform in [1.5, 3] for 80 % of the gangs, and in [3, 4] for the others. Sources:
    stanford-futuredata/gavel, `scheduler/utils.py`, and Narayanan et al., OSDI 2020. The arrivals
    of gangs form a Poisson process. Every node has 8 GPUs, 96 CPUs and 768 GiB. Every task requests
    1 GPU, 8 CPUs and 80 GiB.
    """

    num_jobs: int = 1_000
    num_nodes: int = 100
    load: float = 0.9  # Mean GPU demand of the arriving gangs, as a fraction of the GPU capacity.
    num_queues: int = 4
    num_priorities: int = 1
    estimated: float = 0.0  # Fraction of gangs with a runtime estimate; the estimates are exact.
    seed: int = 0

    def trace(self) -> Trace:
        """Return the trace, which depends only on the parameters."""
        rng = np.random.default_rng(self.seed)
        n = self.num_jobs
        short, long = ((10**b - 10**a) / ((b - a) * float(np.log(10))) for a, b in (_SHORT, _LONG))
        gpu_minutes = float(np.dot(_SIZES, _SIZE_PARTS)) * (
            (1 - _LONG_PART) * short + _LONG_PART * long
        )
        jobs_per_hour = self.load * 8 * self.num_nodes / gpu_minutes * 60
        gaps = rng.exponential(60 * _MINUTE_MS / jobs_per_hour, n)
        is_long = rng.random(n) < _LONG_PART
        exponent = np.where(is_long, rng.uniform(*_LONG, n), rng.uniform(*_SHORT, n))
        draws = {
            "at_ms": np.cumsum(gaps).astype(np.int64) if n else np.zeros(0, np.int64),
            "minutes": np.power(10.0, exponent),
            "size": rng.choice(_SIZES, n, p=_SIZE_PARTS),
            "queue": rng.integers(self.num_queues, size=n),
            "priority": rng.integers(self.num_priorities, size=n),
            "has_estimate": rng.random(n) < self.estimated,
        }
        rows = zip(*(column.tolist() for column in draws.values()), strict=True)
        arrivals: list[Arrival] = []
        for i, (at_ms, minutes, size, queue, priority, has_estimate) in enumerate(rows):
            key, duration_ms = f"jobs/job-{i:06d}", round(minutes * _MINUTE_MS)
            gang = uniform_gang(key, _SHAPE, size, priority=priority, created_ms=at_ms)
            gang = replace(gang, queue=f"q{queue}")
            estimate_ms = duration_ms if has_estimate else None
            arrivals.append(Arrival(at_ms, gang, duration_ms, estimate_ms))
        queues = sorted([*(f"q{i}" for i in range(self.num_queues)), "default", "root"])
        return Trace(
            name=f"gavel-{n}-{self.num_nodes}-{self.seed}",
            nodes=tuple(
                Node(name, _NODE, labels={HOSTNAME: name})
                for name in (f"node-{i:05d}" for i in range(self.num_nodes))
            ),
            queues=tuple(Queue(name) for name in queues),
            arrivals=tuple(arrivals),
        )


class SyntheticError(Exception):
    """Raised for an invalid synthetic trace description; the message names the accepted values."""


_PARTS: Final[Mapping[str, tuple[str, type[int] | type[float]]]] = {
    "jobs": ("num_jobs", int),
    "nodes": ("num_nodes", int),
    "load": ("load", float),
    "queues": ("num_queues", int),
    "priorities": ("num_priorities", int),
    "estimated": ("estimated", float),
    "seed": ("seed", int),
}


def synthetic(text: str) -> Trace:
    """Generate the trace that a string such as `gavel:jobs=1000,nodes=100,seed=3` describes.

    Raises SyntheticError if a name is unknown or repeated, or if a value is not a number in range.
    """
    values: dict[str, float] = {}
    for part in filter(None, text.removeprefix("gavel:").split(",")):
        name, _, value = part.partition("=")
        if name not in _PARTS:
            raise SyntheticError(f"{text}: {name} is not one of {', '.join(_PARTS)}")
        field, kind = _PARTS[name]
        if field in values:
            raise SyntheticError(f"{text}: {name} is given twice; give it once")
        least = 0 if name in ("seed", "estimated") else 1 if kind is int else 1e-9
        what = "a whole number" if kind is int else "a number"
        accepted = f"write {what} from {least:g} to {_LARGEST}"
        number = parse_decimal(value)
        if number is None or (kind is int and number != number.to_integral_value()):
            raise SyntheticError(f"{text}: {name}: {value!r} is not {what}: {accepted}")
        if not least <= number <= _LARGEST:
            raise SyntheticError(f"{text}: {name}: {value} is out of range: {accepted}")
        values[field] = kind(number)
    return GavelTrace(**values).trace()  # type: ignore[arg-type]  # each value has been converted to its type


_LARGEST: Final = 10_000_000


_NODE: Final = tuple(sorted({CPU: 96_000, MEMORY: 768 * _GIB, GPU: 8, PODS: 110}.items()))
_SHAPE: Final = TaskShape(tuple(sorted({CPU: 8_000, MEMORY: 80 * _GIB, GPU: 1}.items())))
