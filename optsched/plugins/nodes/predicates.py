"""The plugin `predicates`: one rule for each supported kube-scheduler filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.plugins.declaration import Argument, Kind, Plugin, read_whole
from optsched.plugins.devices.device_claims import DeviceClaims
from optsched.plugins.nodes.node_filters import HostPorts, NodeAffinity, Taints
from optsched.plugins.storage.volume_limits import VolumeLimits
from optsched.plugins.storage.volumes import VolumeFill, Volumes, VolumeZone
from optsched.plugins.topology.pod_affinity import PodAffinity
from optsched.plugins.topology.spread import Spread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.plugins.declaration import Value
    from optsched.plugins.extension_points import Rule


_ENABLE = "predicate.{}Enable"

_PREDICATES: tuple[tuple[str, type[Rule]], ...] = (
    ("NodeAffinity", NodeAffinity),
    ("TaintToleration", Taints),
    ("NodePorts", HostPorts),
    ("VolumeBinding", Volumes),
    ("VolumeZone", VolumeZone),
    ("NodeVolumeLimits", VolumeLimits),
    ("PodAffinity", PodAffinity),
    ("PodTopologySpread", Spread),
    ("DynamicResourceAllocation", DeviceClaims),
)

_BINDING = "volumebinding."


def _build_predicates(arguments: Mapping[str, Value]) -> tuple[Rule, ...]:
    chosen = [rule for name, rule in _PREDICATES if arguments.get(_ENABLE.format(name), True)]
    patience_s = read_whole(arguments, f"{_BINDING}bindTimeoutSeconds", 600)
    rules = (Volumes(patience_s) if rule is Volumes else rule() for rule in chosen)
    weight, prefix = read_whole(arguments, f"{_BINDING}weight", 1), f"{_BINDING}shape."
    entries: dict[int, dict[str, int]] = {}
    for name, value in arguments.items():
        if name.startswith(prefix):
            number, _, part = name.removeprefix(prefix).partition(".")
            entries.setdefault(int(number), {})[part.lower()] = int(value)
    fill = tuple(sorted((e.get("utilization", 0), e.get("score", 0)) for e in entries.values()))
    scores = Volumes in chosen and fill and weight
    return (*rules, VolumeFill(fill, weight)) if scores else tuple(rules)


PLUGIN = Plugin(
    "predicates",
    "the node filters of kube-scheduler",
    (
        *(
            Argument(_ENABLE.format(n), Kind.SWITCH, True, f"the rule {r.name}")
            for n, r in _PREDICATES
        ),
        Argument(
            "predicate.CacheEnable", Kind.SWITCH, False, "has no effect: masks are always cached"
        ),
        Argument(
            "predicateErrorCacheEnable",
            Kind.SWITCH,
            True,
            "has no effect: failures are always cached",
        ),
        Argument(
            "volumebinding.weight", Kind.WHOLE, 1, "weight of the score by volume utilization"
        ),
        Argument(
            "volumebinding.bindTimeoutSeconds",
            Kind.WHOLE,
            600,
            "maximum time that a pod waits for volumes, in seconds",
        ),
        Argument(
            "volumebinding.shape",
            Kind.LIST,
            "",
            "points by utilization of the chosen volumes; without points, volumes are not scored",
            fields=(
                Argument(
                    "utilization",
                    Kind.WHOLE,
                    0,
                    "requested fraction of the volume capacity, in percent",
                ),
                Argument("score", Kind.WHOLE, 0, "score from 0 to 10"),
            ),
        ),
        Argument("dynamicresources.filterTimeoutSeconds", Kind.WHOLE, 10, "has no effect"),
    ),
    _build_predicates,
)
