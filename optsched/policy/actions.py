"""The actions that a policy may name, and their arguments in `configurations`.

Names and arguments are Volcano's (`pkg/scheduler/actions`); `consolidation` is known from
KAI-Scheduler.
"""

from __future__ import annotations

from optsched.plugins.custom.proposals import Action
from optsched.plugins.declaration import Argument, Kind

NEED_SOLVER = frozenset({"consolidation"})
"""Actions without effect without a solver."""


_CACHE = Argument(
    "predicateErrorCacheEnable", Kind.SWITCH, True, "has no effect: failures are kept by class"
)
_BY_GANG = (
    Argument("maxDomains", Kind.WHOLE, 8, "topology domains that are tried", least=1),
    Argument("allowWholeBundle", Kind.SWITCH, True, "whether whole gangs may be evicted"),
)
_BY_COST = "without a solver: nodes by what it costs that pods go there, not by score"
_PREEMPT = (
    _CACHE,
    Argument(
        "enableTopologyAwarePreemption",
        Kind.SWITCH,
        False,
        _BY_COST,
    ),
    Argument(
        "topologyAwarePreemptWorkerNum", Kind.WHOLE, 16, "has no effect: one thread does", least=1
    ),
    Argument("minCandidateNodesPercentage", Kind.WHOLE, 10, "has no effect: all nodes are tried"),
    Argument("minCandidateNodesAbsolute", Kind.WHOLE, 1, "has no effect: all nodes are tried"),
    Argument(
        "maxCandidateNodesAbsolute", Kind.WHOLE, 100, "has no effect: all nodes are tried", least=1
    ),
)

_MOVING = (
    Argument("maxMoves", Kind.WHOLE, 0, "pods moved in a session at most; 0: as many as it takes"),
)

ACTIONS = {
    action.name: action
    for action in (
        Action(
            "enqueue",
            "lets gangs have their pods created, as far as there may be room; without it "
            "`allocate` lets all in",
        ),
        Action("allocate", "places gangs", (_CACHE,)),
        Action("backfill", "places pods that ask for nothing", (_CACHE,)),
        Action("preempt", "evicts less important pods of the same queue", _PREEMPT),
        Action("reclaim", "evicts pods of queues above their part for those below", (_CACHE,)),
        Action("shuffle", "evicts pods that plugins want moved"),
        Action("gangpreempt", "preempts gang by gang", _BY_GANG),
        Action("consolidation", "moves running pods so that gangs get room in one piece", _MOVING),
        Action("gangreclaim", "reclaims gang by gang", _BY_GANG),
    )
}
