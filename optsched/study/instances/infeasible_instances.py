"""Gangs that can not start, each for a reason of its own that is known beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from optsched.api.wellknown import HOSTNAME
from optsched.cluster.reasons import ReasonCode
from optsched.study.instances.gang_instances import (
    CPUS,
    GIB,
    GPUS,
    node_name,
    priority_classes,
    share,
)
from optsched.study.instances.short_manifests import (
    Order,
    Role,
    amounts,
    gang,
    hypernode,
    node,
    queue,
    stranger,
)
from optsched.units import GPU

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched.study.instances.random_choice import Chance
    from optsched.study.instances.short_manifests import Manifest

ASKED: Final = "asked"
"""Name of the gang that can not start."""


class _Case(NamedTuple):
    """A gang that can not start: its requests, and its reason."""

    order: Order
    roles: Callable[[int], list[Role]]
    code: ReasonCode


@dataclass(frozen=True)
class Impossible:
    """A cluster of racks with one gang that can not start and others that can."""

    # What is in the way: `node`, `cluster`, `ceiling`, `fragments`, `rack`, `label`, `apart` or
    # `pairs`; see `instances/README.md`
    case: str
    nodes: int  # nodes of 8 GPUs, four in a rack

    def __post_init__(self) -> None:
        if self.case not in CASES:
            raise ValueError(f"case: {self.case} is not one of {', '.join(CASES)}")

    @property
    def pending(self) -> dict[str, str]:
        """The expected code of the reason by key of the gang."""
        return {f"jobs/{ASKED}": CASES[self.case].code.value}

    def objects(self, chance: Chance) -> Iterator[Manifest]:
        """The manifests."""
        yield from priority_classes()
        yield queue("small", capability={GPU: "4"})
        case = CASES[self.case]
        names = [node_name(i) for i in range(self.nodes)]
        yield from (node(name, amounts(CPUS, GIB, GPUS)) for name in names)
        for r in range(0, self.nodes, 4):
            yield hypernode(f"rack-{r // 4}", 1, "rack", names[r : r + 4])
        used = 4 if self.case in ("fragments", "pairs") else chance.pick((0, 1, 2))
        for i, name in enumerate(names):
            if used:
                yield stranger(f"other-{i}", share(used, 10), name)
        yield from gang(ASKED, case.roles(self.nodes), case.order._replace(priority_class="high"))
        for i in range(self.nodes // 2):
            role = Role(1, share(chance.pick((1, 2)), 10))
            yield from gang(f"g{i:03d}", [role], Order(priority_class="low"))


_RACK: Final = {"networkTopology": {"mode": "hard", "highestTierAllowed": 1}}


def _anti_affinity(_: int) -> dict[str, Any]:
    selector = {"matchLabels": {"app": ASKED}}
    term = {"labelSelector": selector, "topologyKey": HOSTNAME}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {"affinity": {"podAntiAffinity": required}}


CASES: Final = {
    "node": _Case(Order(), lambda _: [Role(1, share(16, 10))], ReasonCode.IMPOSSIBLE),
    "cluster": _Case(Order(), lambda n: [Role(n + 1, share(8, 10))], ReasonCode.IMPOSSIBLE),
    "ceiling": _Case(
        Order(queue="small"), lambda _: [Role(3, share(2, 10))], ReasonCode.CAPABILITY
    ),
    "fragments": _Case(Order(), lambda _: [Role(1, share(5, 10))], ReasonCode.FRAGMENTED),
    "rack": _Case(Order(more=_RACK), lambda _: [Role(5, share(6, 10))], ReasonCode.TOPOLOGY),
    "label": _Case(
        Order(),
        lambda _: [Role(2, share(1, 10), more={"nodeSelector": {"gpu": "h100"}})],
        ReasonCode.PREDICATES,
    ),
    "apart": _Case(
        Order(),
        lambda n: [Role(n + 1, share(1, 10), more=_anti_affinity(n), labels={"app": ASKED})],
        ReasonCode.IMPOSSIBLE,
    ),
    "pairs": _Case(
        Order(),
        lambda n: [Role(n, share(3, 10), "worker"), Role(1, share(2, 10), "head")],
        ReasonCode.FRAGMENTED,
    ),
}
