"""Node scores by resources in use: `binpack` and `resource-strategy-fit`.

Mathematics: models/formulation/binpack.md and models/formulation/strategy_fit.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.declaration import (
    Argument,
    Kind,
    Plugin,
    read_names,
    read_resource_weights,
    read_whole,
)
from optsched.plugins.devices.proportions import KeptPerDevice, Proportions
from optsched.plugins.extension_points import Rule
from optsched.plugins.nodes.node_filters import Offers
from optsched.units import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.task import TaskShape
    from optsched.plugins.declaration import Value
    from optsched.plugins.extension_points import Scorer
    from optsched.problem.arrays import F64, I64
    from optsched.problem.problem import Problem


TOP = 100.0


@dataclass(frozen=True)
class Binpack(Rule):
    """score = 100 · weight · Σ_r w[r] · (used + request)[r] / allocatable[r] / Σ_r w[r].

    The score is 0 on a node that offers too little of a requested resource.

    Attributes
    ----------
    weight
        Weight of the score among all node scores.
    resources
        Weights by resource name. Only listed resources that the task requests count toward the
        score.

    """

    name = "binpack"

    weight: int = 1
    resources: Mapping[str, int] = field(default_factory=lambda: {CPU: 1, MEMORY: 1})

    def scorer(self, problem: Problem, task_class: int) -> Scorer | None:
        """See `Rule`."""
        request = problem.classes.request[task_class]
        named = sorted(
            (r, weight)
            for name, weight in self.resources.items()
            if weight and (r := problem.index(name)) >= 0
        )
        counted = [(r, int(request[r]), weight) for r, weight in named if request[r]]
        if not counted or not self.weight:
            return None
        top = TOP * self.weight / sum(weight for _, _, weight in counted)
        scaled = [(r, requested, top * weight) for r, requested, weight in counted]

        def score(used: I64, offered: I64) -> F64:
            total = np.zeros(len(used))
            fits = np.ones(len(used), np.bool_)
            for r, requested, factor in scaled:
                busy, most = used[:, r] + requested, offered[:, r]
                fits &= busy <= most
                # Converting integer arrays to floats before the division is faster than dividing
                # them directly.
                share = busy.astype(np.float64)
                share *= factor
                share /= np.maximum(most, 1).astype(np.float64)
                total += share
            return np.where(fits, total, 0.0)

        return score

    def block_scores(
        self, problem: Problem, task_class: I64, used: I64, offered: I64
    ) -> F64 | None:
        """Return the scores of `scorer` for arrays of task classes and nodes.

        The array `task_class` is broadcast against the leading axes of `used` and `offered`
        (..., R).
        """
        request, weights = problem.classes.request, self.resources
        weighed = [(r, w) for r, name in enumerate(problem.resources) if (w := weights.get(name))]
        counted = np.zeros(len(request), np.int64)
        for r, weight in weighed:
            counted += weight * (request[:, r] > 0)
        top = TOP * self.weight / np.maximum(counted, 1)
        total = np.zeros(np.broadcast_shapes(task_class.shape, used.shape[:-1]))
        fits = np.ones(total.shape, np.bool_)
        for r, weight in weighed:
            requested = request[task_class, r]
            busy = used[..., r] + requested
            fits &= (busy <= offered[..., r]) | (requested == 0)
            factor = np.where(requested > 0, top[task_class] * weight, 0.0)
            total += busy * factor / np.maximum(offered[..., r], 1)
        return np.where(fits, total, 0.0)


BINPACK = Plugin(
    "binpack",
    "fills nodes that are in use",
    (
        Argument("binpack.weight", Kind.WHOLE, 1, "weight of the whole score"),
        Argument("binpack.cpu", Kind.WHOLE, 1, "weight of CPU"),
        Argument("binpack.memory", Kind.WHOLE, 1, "weight of memory"),
        Argument(
            "binpack.resources", Kind.NAMES, "", "additional resources that count toward the score"
        ),
        Argument("binpack.resources.*", Kind.WHOLE, 1, "weight of a further resource"),
    ),
    lambda a: (Binpack(read_whole(a, "binpack.weight", 1), read_resource_weights(a, "binpack")),),
)


SCORING_TYPE = "volcano.sh/resource-strategy-scoring-type"
SCORING_WEIGHT = "volcano.sh/resource-strategy-weight"


class Strategy(StrEnum):
    """The strategy of a node score: whether nodes in use or idle nodes score higher."""

    MOST = "MostAllocated"
    LEAST = "LeastAllocated"


@dataclass(frozen=True, slots=True)
class Share:
    """The strategy and the weight of one resource in the node score."""

    strategy: Strategy = Strategy.LEAST
    weight: int = 1


DEFAULT = ((CPU, Share()), (MEMORY, Share()))


@dataclass(frozen=True)
class StrategyFit(Rule):
    """A node score with a strategy per resource; it can keep nodes with scarce resources idle.

    Attributes
    ----------
    weight
        Weight of the strategy score; 0 disables it.
    shares
        Strategy and weight by resource name. A name that ends in `*` stands for all names with that
        prefix. The longest matching prefix applies.
    scarce
        Scarce resources with their weights. Nodes without scarce resources score higher for tasks
        that request no scarce resource.
    scarce_weight
        Weight of the score for scarce resources; 0 disables it.

    """

    name = "strategy-fit"

    weight: int = 10
    shares: tuple[tuple[str, Share], ...] = DEFAULT
    scarce: tuple[tuple[str, int], ...] = ()
    scarce_weight: int = 0

    def scorer(self, problem: Problem, task_class: int) -> Scorer | None:
        """See `Rule`."""
        request = problem.classes.request[task_class].tolist()
        shares = requested_shares(self.shares, problem.classes.shapes[task_class])
        counted = [
            (r, request[r], shares[name])
            for r, name in enumerate(problem.resources)
            if request[r] and name in shares
        ]
        if not counted or not self.weight:
            return None
        top = TOP * self.weight / sum(share.weight for _, _, share in counted)

        def score(used: I64, offered: I64) -> F64:
            total = np.zeros(len(used))
            fits = np.ones(len(used), np.bool_)
            for r, requested, share in counted:
                has = offered[:, r] > 0
                busy = used[:, r] + requested
                part = busy / np.maximum(offered[:, r], 1)
                part = part if share.strategy is Strategy.MOST else 1 - part
                total += np.where(has, part * share.weight * top, 0.0)
                fits &= ~has | (busy <= offered[:, r])
            return np.where(fits, total, 0.0)

        return score

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """See `Rule`.

        Among nodes that offer every requested resource, nodes without scarce resources score
        higher.
        """
        all_of_it = sum(weight for _, weight in self.scarce)
        if not self.scarce_weight or not all_of_it:
            return None
        offers = problem.derived(Offers)
        there = np.zeros(problem.num_nodes)
        for name, weight in self.scarce:
            there += weight * (offers.offered(name) > 0)
        requested = problem.classes.request[task_class] > 0
        meets = (problem.allocatable[:, requested] > 0).all(axis=1)
        score = TOP * self.scarce_weight * (all_of_it - there) / all_of_it
        return np.where(meets, score, 0.0)


def requested_shares(
    shares: tuple[tuple[str, Share], ...], shape: TaskShape
) -> Mapping[str, Share]:
    """Return the strategy and weight of each requested resource that affects the score.

    Pod annotations override the policy: one annotation sets the strategy of all resources, and
    another annotation sets weights by resource. Invalid values are ignored, as in Volcano.
    """
    notes = dict(shape.notes)
    by_name, found = dict(shares), dict[str, Share]()
    for name, _ in shape.request:
        begins = [p for p in by_name if p.endswith("*") and name.startswith(p[:-1])]
        key = name if name in by_name else max(begins, key=len, default=None)
        if key is not None:
            found[name] = by_name[key]
    try:
        given = json.loads(notes.get(SCORING_WEIGHT) or "{}")
    except (ValueError, RecursionError):
        given = {}
    pairs = given.items() if isinstance(given, dict) else ()
    weights = {name: weight for name, weight in pairs if type(weight) is int and weight > 0}
    if weights:
        requested = {name for name, _ in shape.request}
        found = {
            name: replace(found.get(name, Share()), weight=weight)
            for name, weight in weights.items()
            if name in requested
        }
    strategy = notes.get(SCORING_TYPE)
    if strategy in tuple(Strategy):
        return {name: replace(s, strategy=Strategy(strategy)) for name, s in found.items()}
    return found


GIGABYTE = 10**9


def _build_strategy_fit(arguments: Mapping[str, Value]) -> tuple[Rule, ...]:
    sra, weights = bool(arguments.get("sra.enable", False)), "sra.resourceWeight."
    prefix = "resources."
    own = [name.removeprefix(prefix) for name in arguments if name.startswith(prefix)]
    shares = []
    for name in dict.fromkeys(name.rpartition(".")[0] for name in own):
        strategy = Strategy(str(arguments.get(f"{prefix}{name}.type", Strategy.LEAST)))
        weight = read_whole(arguments, f"{prefix}{name}.weight", 1)
        shares.append((name, Share(strategy, weight)))
    fit = StrategyFit(
        weight=read_whole(arguments, "resourceStrategyFitWeight", 10),
        shares=tuple(shares) or DEFAULT,
        scarce=tuple(
            (name, read_whole(arguments, f"{weights}{name}", 1))
            for name in read_names(arguments, "sra.resources")
        ),
        scarce_weight=read_whole(arguments, "sra.weight", 1) if sra else 0,
    )
    if not arguments.get("proportional.enable", False):
        return (fit,)
    kept = []
    for device in read_names(arguments, "proportional.resources"):
        prefix = f"proportional.resourceProportion.{device}"
        cpus, gigabytes = (float(arguments.get(f"{prefix}.{r}", 1)) for r in (CPU, MEMORY))
        kept.append(KeptPerDevice(device, round(cpus * 1000), round(gigabytes * GIGABYTE)))
    return (fit, Proportions(tuple(kept)))


STRATEGY_FIT = Plugin(
    "resource-strategy-fit",
    "packs pods by some resources and spreads them by others",
    (
        Argument("resourceStrategyFitWeight", Kind.WHOLE, 10, "weight of the strategies"),
        Argument(
            "resources",
            Kind.MAPPING,
            "",
            "strategy by resource (default: CPU and memory); a trailing * matches names by prefix",
            fields=(
                Argument(
                    "*",
                    Kind.MAPPING,
                    "",
                    "a resource",
                    fields=(
                        Argument(
                            "type",
                            Kind.CHOICE,
                            Strategy.LEAST,
                            "whether used or idle nodes score higher",
                            choices=tuple(Strategy),
                        ),
                        Argument("weight", Kind.WHOLE, 1, "weight of the resource", least=1),
                    ),
                ),
            ),
        ),
        Argument(
            "sra",
            Kind.MAPPING,
            "",
            "keeps nodes with scarce resources for tasks that request these resources",
            fields=(
                Argument("enable", Kind.SWITCH, False, "whether this score is enabled"),
                Argument("resources", Kind.NAMES, "", "the scarce resources"),
                Argument("weight", Kind.WHOLE, 1, "weight of this score"),
                Argument(
                    "resourceWeight",
                    Kind.MAPPING,
                    "",
                    "weights of the scarce resources",
                    fields=(Argument("*", Kind.WHOLE, 1, "weight of a resource"),),
                ),
            ),
        ),
        Argument(
            "proportional",
            Kind.MAPPING,
            "",
            "reserves CPU and memory for idle devices",
            fields=(
                Argument("enable", Kind.SWITCH, False, "whether CPU and memory are reserved"),
                Argument("resources", Kind.NAMES, "", "the resource names of the devices"),
                Argument(
                    "resourceProportion",
                    Kind.MAPPING,
                    "",
                    "CPU and memory to reserve per idle device",
                    fields=(
                        Argument("*", Kind.NUMBER, 1, "DEVICE.cpu in CPUs, DEVICE.memory in GB"),
                    ),
                ),
            ),
        ),
    ),
    _build_strategy_fit,
)
