"""Images and data sets of nodes and pods, and the way back.

What a node reports of its images stands in `status.images`. Data sets are named in the annotation
`optsched.io/datasets` of nodes, pods and PodGroups; a node may have labels
`datasets.optsched.io/NAME` instead.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.cluster.local_data import NO_LOCAL_DATA, NO_REQUIRED_DATA, RequiredData, Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from optsched.api.meta import ObjectMeta

IMAGES: Final = "optsched.io/images"
"""Stands for the images of a dumped pod, whose containers are made up."""

_NONE: Final = "-"
_FALSE: Final = "false"


@lru_cache(maxsize=1 << 16)
def full_name(image: str) -> str:
    """The name of an image with its tag; `latest` where none is written (`normalizedImageName`)."""
    return f"{image}:latest" if image.rfind(":") <= image.rfind("/") else image


@lru_cache(maxsize=1 << 16)
def _sized(image: str, size: int) -> tuple[str, int]:
    """The same object for the same image on many nodes."""
    return full_name(image), size


def datasets_in(text: str) -> tuple[str, ...]:
    """The data sets in an annotation, with commas between them."""
    return tuple(sorted({name.strip() for name in text.split(",")} - {""}))


def read_local_data(meta: ObjectMeta, status: object) -> Store:
    """What a node holds; entries without a reading are passed over, for they only give scores."""
    datasets = datasets_in(meta.annotations.get(wellknown.DATASETS, ""))
    prefix = wellknown.DATASET_LABEL_PREFIX
    labelled = (
        key.removeprefix(prefix)
        for key, value in meta.labels.items()
        if key.startswith(prefix) and value != _FALSE
    )
    names = tuple(sorted({*datasets, *labelled}))
    images = tuple(sorted(set(_images(status))))
    return Store(images, names) if images or names else NO_LOCAL_DATA


def _images(status: object) -> Iterator[tuple[str, int]]:
    listed = status.get("images") if isinstance(status, dict) else None
    for each in listed if isinstance(listed, list) else ():
        if not isinstance(each, dict) or type(each.get("sizeBytes")) is not int:
            continue
        names = each.get("names")
        for name in names if isinstance(names, list) else ():
            if isinstance(name, str):
                yield _sized(name, each["sizeBytes"])


def dataset_annotation(store: Store, labels: Mapping[str, str]) -> dict[str, str]:
    """The annotation of a node for data sets that its labels do not name."""
    prefix = wellknown.DATASET_LABEL_PREFIX
    left = [n for n in store.datasets if labels.get(f"{prefix}{n}", _FALSE) == _FALSE]
    return {wellknown.DATASETS: ",".join(left)} if left else {}


def encode_images(store: Store) -> dict[str, Any]:
    """`status.images` of a node."""
    listed = [{"names": [name], "sizeBytes": size} for name, size in store.images]
    return {"images": listed} if listed else {}


def read_required_data(meta: ObjectMeta, spec: Mapping[str, Any]) -> RequiredData:
    """What a pod needs."""
    marked = meta.annotations.get(IMAGES)
    names = _container_images(spec) if marked is None else marked.split(" ")
    return _required_data(tuple(names), meta.annotations.get(wellknown.DATASETS, ""))


@lru_cache(maxsize=1 << 12)
def _required_data(names: tuple[str, ...], datasets: str) -> RequiredData:
    """The same object for pods that need the same."""
    images = tuple("" if name in ("", _NONE) else full_name(name) for name in names)
    wants = RequiredData(images if any(images) else (), datasets_in(datasets))
    return NO_REQUIRED_DATA if wants == NO_REQUIRED_DATA else wants


def _container_images(spec: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for part in ("initContainers", "containers"):
        listed = spec.get(part)
        for each in listed if isinstance(listed, list) else ():
            image = each.get("image") if isinstance(each, dict) else None
            found.append(image if isinstance(image, str) else "")
    return found


def required_data_annotations(wants: RequiredData) -> dict[str, str]:
    """The annotations of a dumped pod."""
    marks = {IMAGES: " ".join(image or _NONE for image in wants.images)} if wants.images else {}
    return marks | ({wellknown.DATASETS: ",".join(wants.datasets)} if wants.datasets else {})
