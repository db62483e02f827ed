"""What pods have for themselves alone of a node's CPUs and GPUs, and what was meant for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.cluster.amounts import amount_of
from optsched.cluster.numa import NumaNeed, NumaPart
from optsched.formats.codec.numatopologies import GPU
from optsched.formats.codec.pods.resource_requests import is_sidecar, own_request
from optsched.units import CPU, MEMORY, FieldError, QuantityError, parse_amount

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from optsched.api.fields import Fields
    from optsched.cluster.amounts import Amounts

NEEDS: Final = "optsched.io/numa"
"""Our own mark: the needs of the containers of a pod that has been dumped."""

_ONE: Final = 1000
NOT_BOUND: Final = "is more than the pod has for itself alone, so no binder wrote it; it is ignored"
_NO_DECISION: Final = (
    'is no decision: write {"numa": {"0": {"cpu": "4"}}} with amounts by NUMA node'
)


def numa_needs(spec: Fields, annotations: Mapping[str, str]) -> tuple[NumaNeed, ...]:
    """What each container has for itself alone, sidecars first; containers without are left out.

    CPUs are given to containers of Guaranteed pods that ask for whole ones (the kubelet's CPU
    manager, policy static), GPUs to all that ask for them. Containers that only start a pod are
    not looked at: what they had is given to the others.
    """
    if NEEDS in annotations:
        return _marked(annotations[NEEDS])
    starters = list(spec.records("initContainers"))
    containers = list(spec.records("containers"))
    alone = spec.raw("resources") is None and all(map(_is_fixed, (*starters, *containers)))
    running = (*filter(is_sidecar, starters), *containers)
    needs = (_numa_need(own_request(c), alone=alone) for c in running)
    return tuple(need for need in needs if need.cpus or need.gpus)


def _numa_need(asked: Mapping[str, int], *, alone: bool) -> NumaNeed:
    cpu_m = asked.get(CPU, 0)
    return NumaNeed(cpu_m // _ONE if alone and cpu_m % _ONE == 0 else 0, asked.get(GPU, 0))


def _is_fixed(container: Fields) -> bool:
    """Whether a container may use no more than it asks for, as those of Guaranteed pods."""
    limits, asked = container.record("resources").amounts("limits"), own_request(container)
    return all(limits.get(name) and limits[name] == asked[name] for name in (CPU, MEMORY))


def implied_needs(request: Amounts) -> tuple[NumaNeed, ...]:
    """What a pod of one container needs that may use more than it asks for."""
    gpus = amount_of(request, GPU)
    return (NumaNeed(0, gpus),) if gpus else ()


def needs_text(needs: Sequence[NumaNeed]) -> str:
    """Needs as a mark: CPUs and GPUs of each, `;` between them."""
    return ";".join(f"{n.cpus} {n.gpus}" for n in needs)


def _marked(text: str) -> tuple[NumaNeed, ...]:
    parts = [part.split(" ") for part in text.split(";")]
    if not all(len(p) == 2 and all(map(_is_decimal, p)) for p in parts):
        return ()
    return tuple(NumaNeed(*map(int, p)) for p in parts)


def _is_decimal(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= 9


def check_numa_parts(
    parts: tuple[NumaPart, ...], needs: Sequence[NumaNeed], remarks: list[FieldError]
) -> tuple[NumaPart, ...]:
    """The parts if the needs of a pod can account for them; else none, with a remark.

    Annotations of a pod are written by its user too.
    """
    cpus, gpus = sum(part.cpus for part in parts), sum(part.gpus for part in parts)
    if cpus <= sum(need.cpus for need in needs) and gpus <= sum(need.gpus for need in needs):
        return parts
    path = f"metadata.annotations[{wellknown.TOPOLOGY_DECISION}]"
    remarks.append(FieldError(path, f"{cpus} CPUs and {gpus} GPUs", NOT_BOUND))
    return ()


# --- decisions -----------------------------------------------------------------------------------


def numa_parts(annotations: Mapping[str, str], remarks: list[FieldError]) -> tuple[NumaPart, ...]:
    """What was meant for a pod of the cells of its node (`volcano.sh/topology-decision`)."""
    text = annotations.get(wellknown.TOPOLOGY_DECISION)
    if text is None:
        return ()
    try:
        return tuple(_read(json.loads(text)))
    except (ValueError, TypeError, AttributeError, KeyError, QuantityError, RecursionError):
        path = f"metadata.annotations[{wellknown.TOPOLOGY_DECISION}]"
        remarks.append(FieldError(path, text, _NO_DECISION))
        return ()


def _read(tree: Any) -> Iterator[NumaPart]:  # noqa: ANN401  any JSON
    for cell, listed in sorted((int(cell), listed) for cell, listed in tree["numa"].items()):
        yield NumaPart(
            cell,
            parse_amount(CPU, listed.get(CPU, 0)) // _ONE,
            parse_amount(GPU, listed.get(GPU, 0)),
        )


def decision_marks(parts: Sequence[NumaPart]) -> dict[str, str]:
    """The annotation of a pod for which such parts are meant."""
    if not parts:
        return {}
    by_cell = {str(part.cell): _amounts(part) for part in parts}
    text = json.dumps({"numa": by_cell}, separators=(",", ":"))
    return {wellknown.TOPOLOGY_DECISION: text}


def _amounts(part: NumaPart) -> dict[str, str]:
    amounts = {CPU: part.cpus, GPU: part.gpus}
    return {resource: str(amount) for resource, amount in amounts.items() if amount}
