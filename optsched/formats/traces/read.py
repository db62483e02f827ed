"""Published traces by the names of their formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.traces.gavel import read_gavel
from optsched.formats.traces.helios import read_acme, read_helios
from optsched.formats.traces.openb import read_openb_trace
from optsched.formats.traces.pai import read_pai
from optsched.formats.traces.philly import read_philly

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from optsched.cluster.snapshot import Node
    from optsched.cluster.trace import Found

_WITH_NODES: Final[Mapping[str, Callable[[Path, Sequence[Node] | None], Found]]] = {
    "helios": read_helios,
    "openb": read_openb_trace,
    "pai": read_pai,
    "philly": read_philly,
}
_WITHOUT_NODES: Final[Mapping[str, Callable[[Path, Sequence[Node]], Found]]] = {
    "acme": read_acme,
    "gavel": read_gavel,
}
TRACE_FORMATS: Final = tuple(sorted([*_WITH_NODES, *_WITHOUT_NODES]))
"""Formats that `read_published_trace` knows."""


def read_published_trace(name: str, path: Path, nodes: Sequence[Node] | None = None) -> Found:
    """A trace that others published.

    Parameters
    ----------
    name
        One of `TRACE_FORMATS`.
    path
        Its file, for `pai` its folder.
    nodes
        What to play it on; None for the nodes that the trace comes with. Those of `acme` and
        `gavel` come with none.

    Returns
    -------
    Found
        The trace, and what was left out of it and why, by file and row.

    Raises
    ------
    InstanceError
        An unknown format, files that can not be read, nothing that could be played, or no nodes.

    """
    if name in _WITH_NODES:
        return _WITH_NODES[name](path, nodes)
    if name not in _WITHOUT_NODES:
        raise InstanceError(f"{name!r} is no format of traces: write {', '.join(TRACE_FORMATS)}")
    if nodes is None:
        raise InstanceError(f"{path}: a trace of {name} has no nodes of its own: give some")
    return _WITHOUT_NODES[name](path, nodes)
