"""Build `minResources` like the controllers, with resource names of nodes and of ResourceQuotas."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def least(
    num_pods: int, request: Mapping[str, str], limits: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the entries for `num_pods` pods with their total requests and limits."""
    return {
        **request,
        **{f"requests.{name}": amount for name, amount in request.items()},
        **{f"limits.{name}": amount for name, amount in (limits or {}).items()},
        "pods": str(num_pods),
        "count/pods": str(num_pods),
    }
