"""Fixtures for the tests of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.clusters import cluster
from tests.support.lasting_solver import lasting_solver

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["cluster"]


@pytest.fixture(scope="package", autouse=True)
def _solver() -> Iterator[None]:
    with lasting_solver():
        yield
