from __future__ import annotations

from optsched.local.kubectl import manifest_list, node_manifest


def test_a_node_without_gpus_does_not_mention_them() -> None:
    manifest = node_manifest("n1", cpu="8", memory="32Gi")
    assert manifest["status"]["capacity"] == {"cpu": "8", "memory": "32Gi", "pods": "110"}
    assert manifest["status"]["allocatable"] == manifest["status"]["capacity"]


def test_gpus_are_a_device_plugin_resource() -> None:
    assert node_manifest("n1", gpu=8)["status"]["allocatable"]["nvidia.com/gpu"] == "8"


def test_kwok_takes_it_for_its_own() -> None:
    assert node_manifest("n1")["metadata"]["annotations"] == {"kwok.x-k8s.io/node": "fake"}


def test_labels_come_on_top_of_the_usual_ones() -> None:
    labels = node_manifest("n1", labels={"rack": "r1", "kubernetes.io/arch": "arm64"})["metadata"][
        "labels"
    ]
    assert labels == {
        "kubernetes.io/hostname": "n1",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "arm64",
        "type": "kwok",
        "rack": "r1",
    }


def test_many_make_one_list() -> None:
    manifests = [node_manifest("a"), node_manifest("b")]
    assert manifest_list(manifests) == {"apiVersion": "v1", "kind": "List", "items": manifests}
