"""The volumes of pods, and what they are made of.

As k8s.io/kubernetes, pkg/apis/core/validation, validates volume sources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.admission import names
from optsched.admission.downward import check_field, check_resource
from optsched.admission.paths import check_file_name, check_relative, check_stays
from optsched.admission.placement import check_labels, check_selector
from optsched.admission.pod_types import nanos_of, pod_types

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.admission.parts import Part

_NEEDS: Final = {
    "awsElasticBlockStore": ("volumeID",),
    "azureDisk": ("diskName", "diskURI"),
    "azureFile": ("secretName", "shareName"),
    "cephfs": ("monitors",),
    "cinder": ("volumeID",),
    "configMap": ("name",),
    "csi": ("driver",),
    "ephemeral": ("volumeClaimTemplate",),
    "flexVolume": ("driver",),
    "gcePersistentDisk": ("pdName",),
    "gitRepo": ("repository",),
    "glusterfs": ("endpoints", "path"),
    "hostPath": ("path",),
    "image": ("reference",),
    "iscsi": ("targetPortal", "iqn"),
    "nfs": ("server", "path"),
    "persistentVolumeClaim": ("claimName",),
    "photonPersistentDisk": ("pdID",),
    "portworxVolume": ("volumeID",),
    "quobyte": ("registry", "volume"),
    "rbd": ("monitors", "image"),
    "scaleIO": ("gateway", "system", "volumeName"),
    "secret": ("secretName",),
    "storageos": ("volumeName",),
    "vsphereVolume": ("volumePath",),
}
"""What each kind of volume cannot do without."""
_HOST_TYPES: Final = (
    *("DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket"),
    *("CharDevice", "BlockDevice"),
)
_ACCESS_MODES: Final = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
_MAX_MODE: Final = 0o777
_MODE_RULE: Final = f"write 0 to {_MAX_MODE} (0777 in octal, which JSON cannot hold)"
_DRIVER_RULE: Final = (
    "write at most 63 letters, digits, '-' and '.', with a letter or digit at both ends"
)
_FIELDS: Final = (
    *("metadata.annotations", "metadata.labels", "metadata.name"),
    *("metadata.namespace", "metadata.uid"),
)
_LEAST_TOKEN_S: Final = 600
_MOST_TOKEN_S: Final = 2**32


def check_volumes(spec: Part) -> dict[str, str]:
    """The volumes of a pod; gives the kind of each by its name."""
    known: dict[str, str] = {}
    for volume in spec.parts("volumes"):
        name = volume.text("name")
        if not name:
            volume.required("name", "give each volume a name")
        elif name in known:
            volume.duplicate("name", name, "give each a name of its own")
        volume.fits("name", names.is_label, names.LABEL_RULE)
        known[name] = _check_source(volume)
    return known


def _check_source(volume: Part) -> str:
    """Look at what a volume is made of; gives its kind."""
    known = pod_types()["Volume"]
    there = [kind for kind in sorted(volume.raw) if kind in known and volume.has(kind)]
    kinds = [kind for kind in there if kind != "name"]
    for extra in kinds[1:]:
        volume.forbidden(
            extra, f"may not specify more than 1 volume type: keep {kinds[0]} or {extra}"
        )
    source = volume.part(kinds[0]) if kinds else None
    if source is None:
        return "emptyDir"
    for name in _NEEDS.get(kinds[0], ()):
        if source.raw.get(name) in (None, "", []):
            source.required(name, f"a volume of {kinds[0]} needs it")
    check = _CHECKS.get(kinds[0])
    if check is not None:
        check(source)
    return kinds[0]


def _check_empty(source: Part) -> None:
    limit = source.raw.get("sizeLimit")
    if limit is not None and nanos_of(limit) < 0:
        source.invalid("sizeLimit", "write an amount of zero or more")


def _check_host_path(source: Part) -> None:
    check_stays(source, "path")
    source.choose("type", *_HOST_TYPES)


def _check_git(source: Part) -> None:
    check_relative(source, "directory")


def _check_nfs(source: Part) -> None:
    path = source.text("path")
    if path and not path.startswith("/"):
        source.invalid("path", "must be an absolute path: begin it with '/'")


def _check_csi(source: Part) -> None:
    source.fits("driver", _is_driver, _DRIVER_RULE)


def _is_driver(name: str) -> bool:
    return len(name) <= names.MAX_LABEL and names.is_subdomain(name.lower())


def _check_image(source: Part) -> None:
    source.choose("pullPolicy", "Always", "IfNotPresent", "Never")


def _check_disk(source: Part) -> None:
    source.within("partition", 0, 255)


# --- files made of objects ------------------------------------------------------------------------


def _check_files(source: Part) -> None:
    """A ConfigMap or a Secret."""
    _check_mode(source, "defaultMode")
    for item in source.parts("items"):
        if not item.text("key"):
            item.required("key", "write which key is shown")
        _check_file(item)


def _check_file(item: Part) -> None:
    if not item.text("path"):
        item.required("path", "write under which path it is shown")
    check_file_name(item, "path")
    _check_mode(item, "mode")


def _check_mode(part: Part, name: str) -> None:
    mode = part.raw.get(name)
    if mode is not None and not 0 <= mode <= _MAX_MODE:
        part.invalid(name, _MODE_RULE)


def _check_downward(source: Part) -> None:
    _check_mode(source, "defaultMode")
    for item in source.parts("items"):
        _check_file(item)
        present = item.present("fieldRef", "resourceFieldRef")
        if not present:
            item.findings.required(item.path, "write one of fieldRef and resourceFieldRef")
        elif len(present) > 1:
            item.invalid("fieldRef", "keep one of fieldRef and resourceFieldRef")
        check_field(item, _FIELDS)
        check_resource(item, needs_container=True)


def _check_projected(source: Part) -> None:
    _check_mode(source, "defaultMode")
    seen: set[str] = set()
    for each in source.parts("sources"):
        kinds = each.present(*sorted(pod_types()["VolumeProjection"]))
        for extra in kinds[1:]:
            each.forbidden(
                extra, f"may not specify more than 1 volume type: keep {kinds[0]} or {extra}"
            )
        for kind in kinds:
            _check_projection(each, kind, seen)


def _check_projection(source: Part, kind: str, seen: set[str]) -> None:
    inner = source.part(kind)
    if inner is None:
        return
    if kind in ("configMap", "secret"):
        if not inner.text("name"):
            inner.required("name", f"a projection of a {kind} needs it")
        _check_files(inner)
    elif kind == "downwardAPI":
        _check_downward(inner)
    elif kind == "serviceAccountToken":
        _check_token(inner)
        return
    for item in inner.parts("items") if kind != "podCertificate" else ():
        path = item.text("path")
        if path and path in seen:
            item.duplicate("path", path, "give each file a path of its own")
        seen.add(path)


def _check_token(token: Part) -> None:
    token.within("expirationSeconds", _LEAST_TOKEN_S, _MOST_TOKEN_S)
    if not token.text("path"):
        token.required("path", "write under which path the token is shown")
    check_file_name(token, "path")


# --- claims made for a pod ------------------------------------------------------------------------


def _check_ephemeral(source: Part) -> None:
    template = source.part("volumeClaimTemplate")
    if template is None:
        return
    meta, spec = template.part("metadata"), template.part("spec")
    if meta is not None:
        check_labels(meta, "labels")
    if spec is None:
        template.required("spec", "write accessModes and resources of the claim")
        return
    check_claim(spec)


def check_claim(spec: Part) -> None:
    """The spec of a PersistentVolumeClaim."""
    modes = spec.list_of("accessModes")
    if not modes:
        spec.required("accessModes", f"write at least one of {', '.join(_ACCESS_MODES)}")
    for position, mode in enumerate(modes):
        if mode not in _ACCESS_MODES:
            path = f"{spec.path}.accessModes[{position}]"
            spec.findings.invalid(path, mode, f"write one of {', '.join(_ACCESS_MODES)}")
    if "ReadWriteOncePod" in modes and len(set(modes)) > 1:
        spec.invalid("accessModes", "ReadWriteOncePod goes with no other access mode")
    check_selector(spec, "selector")
    spec.choose("volumeMode", "Block", "Filesystem", is_required=spec.has("volumeMode"))
    for name in ("storageClassName", "volumeAttributesClassName"):
        spec.fits(name, names.is_subdomain, names.SUBDOMAIN_RULE)
    _check_storage(spec)


def _check_storage(spec: Part) -> None:
    amounts = (spec.raw.get("resources") or {}).get("requests") or {}
    amount = amounts.get("storage")
    path = f"{spec.path}.resources.requests[storage]"
    if "storage" not in amounts:
        spec.findings.required(path, "write how much is needed, such as 10Gi")
    elif nanos_of(amount or "0") <= 0:
        spec.findings.invalid(path, amount, "must be greater than zero, such as 10Gi")


_CHECKS: Final[dict[str, Callable[[Part], None]]] = {
    "awsElasticBlockStore": _check_disk,
    "configMap": _check_files,
    "csi": _check_csi,
    "downwardAPI": _check_downward,
    "emptyDir": _check_empty,
    "ephemeral": _check_ephemeral,
    "gcePersistentDisk": _check_disk,
    "gitRepo": _check_git,
    "hostPath": _check_host_path,
    "image": _check_image,
    "nfs": _check_nfs,
    "projected": _check_projected,
    "secret": _check_files,
}
