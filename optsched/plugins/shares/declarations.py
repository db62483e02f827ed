"""The plugins that share capacity: `drf`, `proportion` and `capacity`, with their rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.plugins.declaration import (
    Argument,
    Kind,
    LevelKind,
    Plugin,
    read_duration_ms,
    read_whole,
)
from optsched.plugins.extension_points import Switch
from optsched.plugins.shares.capacity import Capacity
from optsched.plugins.shares.drf import Drf
from optsched.plugins.shares.guarantee import Guarantee
from optsched.plugins.shares.proportion import LEND_IDLE, Proportion
from optsched.plugins.shares.queue_limits import Capability, LeafQueues
from optsched.plugins.shares.tree_fairness import HierarchicalDrf, OverTime

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.plugins.declaration import Value
    from optsched.plugins.extension_points import Rule


HALF_LIFE = "usage.halfLife"

_LENDING = "gangs of reclaimable queues may borrow idle capacity beyond their deserved share"


def _over_time(arguments: Mapping[str, Value], *, keeps_deserved: bool = False) -> tuple[Rule, ...]:
    half_life_ms = read_duration_ms(arguments, HALF_LIFE)
    if half_life_ms is None:
        return ()
    return (OverTime(half_life_ms, keeps_deserved=keeps_deserved),)


_HALF_LIFE = Argument(
    HALF_LIFE,
    Kind.DURATION,
    "",
    "half-life of past usage, which counts toward the shares of queues",
)


FAIR_SHARE = LevelKind(
    "fair-share",
    "how far queues and gangs are below their fair shares",
    50,
    ("proportion", "capacity", "drf"),
)
_GUARANTEE = LevelKind(
    "guarantee", "guaranteed resources that queues request but lack", 10, ("guarantee",)
)

DRF = Plugin(
    "drf",
    "gangs with the smallest dominant share first",
    (_HALF_LIFE,),
    lambda a: (
        (
            HierarchicalDrf(
                reclaims=bool(a.get(Switch.RECLAIMABLE.value, True)),
                half_life_ms=read_duration_ms(a, HALF_LIFE) or 0,
            ),
        )
        if a.get(Switch.HIERARCHY.value, False)
        else (*_over_time(a), Drf())
    ),
    levels=(FAIR_SHARE,),
)

PROPORTION = Plugin(
    "proportion",
    "queues share the cluster by weight",
    (_HALF_LIFE, Argument(LEND_IDLE, Kind.SWITCH, False, _LENDING)),
    lambda a: (
        *_over_time(a),
        Proportion(lends=bool(a.get(LEND_IDLE, False))),
        Capability(),
        Guarantee(),
    ),
    levels=(_GUARANTEE, FAIR_SHARE),
)

CAPACITY = Plugin(
    "capacity",
    "queues deserve fixed shares and may borrow more",
    (
        _HALF_LIFE,
        Argument(
            "ancestorReclaimLevel", Kind.WHOLE, 0, "number of ancestor levels that reclaim checks"
        ),
        Argument(
            "capacity.DynamicResourceAllocationEnable",
            Kind.SWITCH,
            True,
            "has no effect: claimed devices always count if a queue lists their DeviceClass",
        ),
        Argument(
            "capacity.DRAConsumableCapacityEnable",
            Kind.SWITCH,
            True,
            "has no effect: claimed devices always count if a queue lists their DeviceClass",
        ),
    ),
    lambda a: (
        *_over_time(a, keeps_deserved=True),
        Capacity(read_whole(a, "ancestorReclaimLevel", 0)),
        Capability(),
        Guarantee(),
        *((LeafQueues(),) if a.get(Switch.HIERARCHY.value, False) else ()),
    ),
    levels=(_GUARANTEE, FAIR_SHARE),
)
