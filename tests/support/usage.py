"""`minResources` as controllers write them: what nodes give, and what ResourceQuotas count."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def least(
    num_pods: int, request: Mapping[str, str], limits: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the entries for so many pods with their requests and limits in all."""
    return {
        **request,
        **{f"requests.{name}": amount for name, amount in request.items()},
        **{f"limits.{name}": amount for name, amount in (limits or {}).items()},
        "pods": str(num_pods),
        "count/pods": str(num_pods),
    }
