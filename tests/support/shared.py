"""Find material outside of the project: traces, manifests, conformance scenarios."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("OPTSCHED_SHARED", ROOT.parent / "shared")).resolve()


def shared(*parts: str) -> Path:
    """Return the path of a file or folder of the material.

    Without the material, skip the test, or fail it if CI is set.
    """
    path = SHARED.joinpath(*parts)
    if not path.exists():
        reason = f"{path} is missing: set OPTSCHED_SHARED to the folder of shared material"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return path


def found(pattern: str) -> list[Path]:
    """Return the files that match a pattern, or an empty list without the material."""
    return sorted(SHARED.glob(pattern))
