"""A packing as a file, for other programs; docs/solve.md explains it.

Items are named by the rows of the instance's file, the first of which is row 0.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from optsched.formats.codec.snapshot_annotations import API_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.study.packing.packing_problem import Bin
    from optsched.study.packing.vbp import VbpInstance

KIND: Final = "Packing"
LIST_KIND: Final = "PackingList"


def packing_document(
    instance: VbpInstance, bins: Sequence[Bin], result: Mapping[str, Any], made: Mapping[str, Any]
) -> dict[str, Any]:
    """One packing.

    Parameters
    ----------
    instance
        What was packed.
    bins
        Of its kinds.
    result
        The number of bins, its quality, and its source.
    made
        Everything to reproduce it.

    """
    problem = instance.problem
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "instance": {
            "name": problem.name,
            "sha256": instance.sha256,
            "capacity": list(problem.capacity),
            "items": problem.num_items,
        },
        "result": dict(result),
        "bins": rows_of_bins(instance, bins),
        "made": dict(made),
    }


def packing_list(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several of them; one alone stays unchanged."""
    if len(documents) == 1:
        return dict(documents[0])
    return {"apiVersion": API_VERSION, "kind": LIST_KIND, "items": list(documents)}


def rows_of_bins(instance: VbpInstance, bins: Sequence[Bin]) -> list[list[int]]:
    """The rows of each bin's items, in order; a row as often as items of it are inside."""
    kind_of = {kind.sizes: k for k, kind in enumerate(instance.problem.kinds)}
    rows: dict[int, list[int]] = defaultdict(list)
    for i, row in reversed(list(enumerate(instance.rows))):
        rows[kind_of.get(row.sizes, -1)].extend([i] * row.number)
    return [sorted(rows[k].pop() for k, number in each for _ in range(number)) for each in bins]
