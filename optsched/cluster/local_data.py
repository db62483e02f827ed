"""What nodes hold already and pods would have to fetch: images and data sets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class RequiredData:
    """What a pod needs.

    Attributes
    ----------
    images
        One for each of its containers, with its tag; empty where that does not matter.
    datasets
        In name order.
    """

    images: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Store:
    """What a node holds: (name, bytes) of images and names of data sets, in name order."""

    images: tuple[tuple[str, int], ...] = ()
    datasets: tuple[str, ...] = ()

    @cached_property
    def size_of(self) -> Mapping[str, int]:
        """Bytes by image."""
        return dict(self.images)


NO_REQUIRED_DATA: Final = RequiredData()
NO_LOCAL_DATA: Final = Store()
