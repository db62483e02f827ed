"""Paths of files in volumes, as k8s.io/kubernetes, pkg/apis/core/validation, takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optsched.admission.parts import Part


def check_relative(part: Part, name: str) -> None:
    """A path stays below the place where it is looked for."""
    value = part.text(name)
    if value.startswith("/"):
        part.invalid(name, "must be a relative path: leave out the first '/'")
    check_stays(part, name)


def check_stays(part: Part, name: str) -> None:
    """A path does not go up."""
    if ".." in part.text(name).split("/"):
        part.invalid(name, "must not contain '..'")


def check_file_name(part: Part, name: str) -> None:
    """A path below a volume that is not one of the kubelet's own."""
    check_relative(part, name)
    value = part.text(name)
    if value.startswith("..") and value.split("/")[0] != "..":
        part.invalid(name, "must not start with '..'")
