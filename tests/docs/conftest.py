"""Fixtures of the documentation tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.lasting_solver import lasting_solver

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="package", autouse=True)
def _solver() -> Iterator[None]:
    with lasting_solver():
        yield
