"""Pods start near their images and data sets on a real cluster (docs/locality.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.api import until

if TYPE_CHECKING:
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins:
  - name: predicates
  - name: nodeorder
  - name: data-locality
    arguments: {data-locality.weight: 5}
"""
IMAGE = "registry.example/train:1"
DATASETS = "optsched.io/datasets"
solvers = pytest.mark.parametrize("solver", ["cpsat", "none"])


def begin(site: Site, solver: str) -> None:
    site.scheduler("--solver", solver, "--config", str(site.file("near.conf", CONF)))


def mark(site: Site, node: str, **metadata: Any) -> None:
    """Set labels or annotations of a node."""
    site.api.patch(f"/api/v1/nodes/{node}", {"metadata": metadata})


def running(image: str) -> dict[str, Any]:
    """Return a container with 1 CPU."""
    return {"name": "main", "image": image, "resources": {"requests": {"cpu": "1"}}}


@solvers
def test_pods_start_where_their_image_is(site: Site, solver: str) -> None:
    *_, last = site.nodes(3)
    held = [{"names": [IMAGE], "sizeBytes": 4 << 30}]
    path = f"/api/v1/nodes/{last}"
    site.api.patch(f"{path}/status", {"status": {"images": held}})
    until(lambda: site.api.get(path)["status"].get("images") == held, "the node tells of it")
    begin(site, solver)
    site.gang("other", 1, containers=[running("registry.example/other:1")])
    site.await_bound("other", 1)
    assert last not in site.story.nodes_of("other")
    site.gang("train", 2, containers=[running(IMAGE)])
    site.await_bound("train", 2)
    assert site.story.nodes_of("train") == {last: 2}


@solvers
def test_jobs_start_where_their_data_sets_are_as_long_as_there_is_room(
    site: Site, solver: str
) -> None:
    plain, some, all_of_it = site.nodes(3)
    mark(site, some, labels={"datasets.optsched.io/imagenet": "true"})
    mark(site, all_of_it, annotations={DATASETS: "imagenet,laion"})
    begin(site, solver)
    for name, size in (("near", 4), ("next", 4), ("far", 2)):
        site.group(name, size, annotations={DATASETS: "imagenet, laion"})
        site.members(name, range(size))
        site.await_bound(name, size)
    assert site.story.nodes_of("near") == {all_of_it: 4}
    assert site.story.nodes_of("next") == {some: 4}
    assert site.story.nodes_of("far") == {plain: 2}
