"""Images and data sets in annotations and statuses of nodes and pods, and their decoded form."""

from __future__ import annotations

from typing import Any

import pytest

from optsched.cluster.node_resources import NO_LOCAL_DATA, NO_REQUIRED_DATA, RequiredData, Store
from optsched.formats.codec.nodes import full_name, parse_node
from optsched.formats.codec.pods.reader import PodDecoder
from tests.formats.objects import node, pod

GIB = 1 << 30


def store(images: Any = None, annotation: str = "", **labels: str) -> Store:
    made = node(labels={f"datasets.optsched.io/{name}": value for name, value in labels.items()})
    made["metadata"]["annotations"] = {"optsched.io/datasets": annotation} if annotation else {}
    made["status"]["images"] = images
    found, errors = parse_node(made)
    assert found is not None
    assert errors == ()
    return found.store


def wants(spec: dict[str, Any], annotation: str = "") -> RequiredData:
    marks = {"optsched.io/datasets": annotation} if annotation else {}
    return PodDecoder().task(pod("p", spec, annotations=marks)).wants


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("busybox", "busybox:latest"),
        ("r.io:5000/a/b", "r.io:5000/a/b:latest"),
        ("r.io:5000/a/b:1.2", "r.io:5000/a/b:1.2"),
        ("a@sha256:0f", "a@sha256:0f"),
    ],
)
def test_an_image_without_a_tag_is_the_latest(image: str, name: str) -> None:
    assert full_name(image) == name


def test_a_node_holds_every_name_of_an_image() -> None:
    listed = [{"names": ["b:1", "b"], "sizeBytes": GIB}, {"names": ["a:1"], "sizeBytes": 5}]
    assert store(listed).images == (("a:1", 5), ("b:1", GIB), ("b:latest", GIB))


@pytest.mark.parametrize(
    "listed", [None, "a", [7], [{"names": "a"}], [{"names": [7], "sizeBytes": 1}], [{}]]
)
def test_images_without_a_reading_are_passed_over(listed: Any) -> None:
    assert store(listed) is NO_LOCAL_DATA


def test_data_sets_of_a_node_are_named_by_annotation_or_label() -> None:
    found = store(None, " maps, atlas,,maps", laion="true", old="false", empty="")
    assert found.datasets == ("atlas", "empty", "laion", "maps")


def test_a_pod_wants_the_images_of_its_containers_and_its_data_sets() -> None:
    spec = {"initContainers": [{"image": "init"}], "containers": [{"image": "a:1"}, {"name": "c"}]}
    assert wants(spec, "maps,atlas") == RequiredData(("init:latest", "a:1", ""), ("atlas", "maps"))
    assert wants({"containers": [{"name": "c"}]}) is NO_REQUIRED_DATA
