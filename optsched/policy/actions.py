"""Declare the built-in actions, and their arguments in the section `configurations`.

Actions and arguments have the same names as in Volcano (`pkg/scheduler/actions`). The name
`consolidation` comes from KAI-Scheduler.
"""

from __future__ import annotations

from optsched.plugins.custom.proposals import Action
from optsched.plugins.declaration import Argument, Kind

NEED_SOLVER = frozenset({"consolidation"})
"""Actions that have no effect without a solver."""


_CACHE = Argument(
    "predicateErrorCacheEnable",
    Kind.SWITCH,
    True,
    "has no effect: failures are cached by task class",
)
_BY_GANG = (
    Argument("maxDomains", Kind.WHOLE, 8, "maximum number of topology domains to try", least=1),
    Argument("allowWholeBundle", Kind.SWITCH, True, "whether an entire gang may be evicted"),
)
_BY_COST = "without a solver: order nodes by the cost of the evicted pods, not by score"
_PREEMPT = (
    _CACHE,
    Argument(
        "enableTopologyAwarePreemption",
        Kind.SWITCH,
        False,
        _BY_COST,
    ),
    Argument(
        "topologyAwarePreemptWorkerNum",
        Kind.WHOLE,
        16,
        "has no effect: a single thread is used",
        least=1,
    ),
    Argument("minCandidateNodesPercentage", Kind.WHOLE, 10, "has no effect: all nodes are tried"),
    Argument("minCandidateNodesAbsolute", Kind.WHOLE, 1, "has no effect: all nodes are tried"),
    Argument(
        "maxCandidateNodesAbsolute", Kind.WHOLE, 100, "has no effect: all nodes are tried", least=1
    ),
)

_MOVING = (
    Argument("maxMoves", Kind.WHOLE, 0, "maximum number of pods moved in one session; 0: no limit"),
)

ACTIONS = {
    action.name: action
    for action in (
        Action(
            "enqueue",
            "sets gangs to Inqueue if capacity may suffice; controllers then create their pods; "
            "without this action, `allocate` does so for all gangs",
        ),
        Action("allocate", "places gangs", (_CACHE,)),
        Action("backfill", "places pods that request no resources", (_CACHE,)),
        Action("preempt", "evicts pods of lower priority in the same queue", _PREEMPT),
        Action(
            "reclaim",
            "evicts pods of queues above their share, to place pods of queues below their share",
            (_CACHE,),
        ),
        Action("shuffle", "evicts pods that plugins select to be moved"),
        Action("gangpreempt", "preempts gang by gang", _BY_GANG),
        Action("consolidation", "moves running pods so that waiting gangs fit", _MOVING),
        Action("gangreclaim", "reclaims gang by gang", _BY_GANG),
    )
}
