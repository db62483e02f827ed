"""Functions that create short manifests for tests."""

from __future__ import annotations

from typing import Any


def meta(name: str, namespace: str = "ns", **more: Any) -> dict[str, Any]:
    """Return metadata; an empty namespace is omitted."""
    return {"name": name, **({"namespace": namespace} if namespace else {}), **more}


def pod(
    name: str = "p",
    spec: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return a pod for optsched that requests one CPU. `more` are fields of its metadata."""
    asked = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta(name, **more),
        "spec": {"schedulerName": "volcano", **asked, **(spec or {})},
        "status": {"phase": "Pending", **(status or {})},
    }


def node(name: str = "n1", labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a Ready node of eight CPUs."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": meta(name, "", labels=labels or {}),
        "spec": spec,
        "status": {"allocatable": {"cpu": "8", "pods": "10"}},
    }


def group(name: str = "g", spec: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Return a PodGroup. `more` are fields of its metadata."""
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": meta(name, **more),
        "spec": spec or {},
    }


def queue(name: str, **spec: Any) -> dict[str, Any]:
    """Return a queue with the given spec."""
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": meta(name, ""),
        "spec": spec,
    }


def thing(
    api_version: str, kind: str, name: str, namespace: str = "", **more: Any
) -> dict[str, Any]:
    """Return an object of any kind."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": meta(name, namespace),
        **more,
    }


# --- devices -------------------------------------------------------------------------------------

DRIVER = "gpu.example.com"


def device_class(name: str = DRIVER, *selectors: str, **more: Any) -> dict[str, Any]:
    """Return a DeviceClass; without selectors it selects the devices of `DRIVER`."""
    texts = selectors or (f"device.driver == '{DRIVER}'",)
    spec = {"selectors": [{"cel": {"expression": text}} for text in texts]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": meta(name, "", **more),
        "spec": spec,
    }


def device_slice(node_name: str, *devices: dict[str, Any] | str, **spec: Any) -> dict[str, Any]:
    """Return the only ResourceSlice of a node's pool, with devices by name or in full."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": meta(f"{node_name}-slice", ""),
        "spec": {
            "driver": DRIVER,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
            "nodeName": node_name,
            "devices": [{"name": d} if isinstance(d, str) else d for d in devices],
            **spec,
        },
    }


def device_claim(
    name: str, count: int = 1, status: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """Return a ResourceClaim for some devices of the class `DRIVER`.

    `more` are fields of the claim's metadata; its `exactly` extends the request.
    """
    exactly = {"deviceClassName": DRIVER, "count": count, **more.pop("exactly", {})}
    request = {"name": "gpu", "exactly": exactly}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": meta(name, **{"uid": f"uid-{name}", **more}),
        "spec": {"devices": {"requests": [request]}},
        **({"status": status} if status else {}),
    }


def allocated(*devices: str, node_name: str, uids: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the status of a claim to which devices of a node are allocated."""
    results = [
        {"request": "gpu", "driver": DRIVER, "pool": node_name, "device": d} for d in devices
    ]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}
    return {
        "allocation": {
            "devices": {"results": results},
            "nodeSelector": {"nodeSelectorTerms": [term]},
        },
        "reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in uids],
    }


def claiming(*claims: str) -> dict[str, Any]:
    """Return the part of a pod spec that names ResourceClaims."""
    return {
        "resourceClaims": [{"name": f"c{i}", "resourceClaimName": c} for i, c in enumerate(claims)]
    }


# --- volumes -------------------------------------------------------------------------------------

CSI = "csi.example.com"


def csi_node(name: str, **limits: object) -> dict[str, Any]:
    """Return the CSINode of a node.

    `limits` are numbers of volumes by driver name, where `csi` stands for `CSI`.
    """
    drivers = [
        {"name": CSI if driver == "csi" else driver, "nodeID": name, "allocatable": {"count": most}}
        for driver, most in limits.items()
    ]
    return thing("storage.k8s.io/v1", "CSINode", name, spec={"drivers": drivers})


def volume(name: str, labels: dict[str, str] | None = None, handle: str = "") -> dict[str, Any]:
    """Return a PersistentVolume of the driver `CSI`."""
    csi = {"driver": CSI, "volumeHandle": handle or name}
    made = thing("v1", "PersistentVolume", name, spec={"csi": csi})
    made["metadata"]["labels"] = labels or {}
    return made


def bound_claim(name: str, volume_name: str = "") -> dict[str, Any]:
    """Return a PersistentVolumeClaim that is bound to a volume, by default to that of its name."""
    spec = {"volumeName": volume_name or name}
    return thing("v1", "PersistentVolumeClaim", name, "ns", spec=spec, status={"phase": "Bound"})


def mounting(*claims: str) -> dict[str, Any]:
    """Return the part of a pod spec that mounts PersistentVolumeClaims."""
    mounted = ({"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims)
    return {"volumes": list(mounted)}
