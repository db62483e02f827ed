"""An assignment of processes as a file, for other programs; docs/solve.md explains it."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from optsched.formats.codec.snapshot_annotations import API_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

KIND: Final = "Reassignment"
SUFFIX: Final = ".txt"


def is_model(path: str) -> bool:
    """Whether a path names a model of the challenge rather than a cluster."""
    return path.endswith(SUFFIX)


def reassignment_document(
    model: Path, machine_of: Sequence[int], result: Mapping[str, Any], made: Mapping[str, Any]
) -> dict[str, Any]:
    """One assignment.

    Parameters
    ----------
    model
        The file it is for.
    machine_of
        Of each process.
    result
        The costs, their quality, and their source.
    made
        Everything to reproduce it.

    """
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "instance": {
            "name": model.stem,
            "sha256": sha256(model.read_bytes()).hexdigest(),
            "processes": len(machine_of),
        },
        "result": dict(result),
        "machines": list(machine_of),
        "made": dict(made),
    }


def write_assignment(machine_of: Sequence[int]) -> str:
    """As the challenge writes it: the machine of each process on one line."""
    return " ".join(map(str, machine_of)) + "\n"
