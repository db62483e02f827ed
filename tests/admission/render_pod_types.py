"""Write optsched/admission/pod_types.txt: run `python -m tests.admission.render_pod_types`.

The fields of a pod and their types come from the models of the `kubernetes` package.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from kubernetes.client import models

PATH = Path(__file__).parents[2] / "optsched" / "admission" / "pod_types.txt"
ROOTS = ("V1PodTemplateSpec", "V1PersistentVolumeClaimSpec")
SCALARS = {
    "str": "text",
    "int": "int32",
    "bool": "boolean",
    "object": "any",
    "datetime": "time",
    "dict(str, str)": "{text}",
    "list[str]": "[text]",
    "list[int]": "[int32]",
}
AMOUNTS = {"limits", "requests", "overhead"}
LONG = {
    *("activeDeadlineSeconds", "deletionGracePeriodSeconds", "expirationSeconds", "fsGroup"),
    *("generation", "runAsGroup", "runAsUser", "seconds", "supplementalGroups"),
    *("terminationGracePeriodSeconds", "tolerationSeconds", "user", "defaultUser"),
}
"""Numbers that have 64 bits in Go; all others have 32 (k8s.io/api/core/v1/types.go)."""
PORTS = {("HTTPGetAction", "port"), ("TCPSocketAction", "port")}
QUANTITIES = {("EmptyDirVolumeSource", "sizeLimit"), ("ResourceFieldSelector", "divisor")}


def short(name: str) -> str:
    return name.removeprefix("Core").removeprefix("V1")


def word(owner: str, field: str, kind: str) -> str:
    """What the file says of a field."""
    kind = kind.replace("List[", "list[").replace("Dict[str, str]", "dict(str, str)")
    if kind == "dict(str, str)" and field in AMOUNTS:
        return "{quantity}"
    if (owner, field) in QUANTITIES:
        return "quantity"
    if (owner, field) in PORTS:
        return "port"
    if kind in SCALARS:
        return SCALARS[kind].replace("int32", "int64" if field in LONG else "int32")
    listed = re.fullmatch(r"list\[(\w+)\]", kind)
    return f"[{short(listed[1])}]" if listed else short(kind)


def render() -> str:
    """The file as it should be."""
    todo, found = list(ROOTS), {}
    while todo:
        name = todo.pop()
        if name in found:
            continue
        model: Any = getattr(models, name)
        found[name] = model
        kinds = " ".join(model.openapi_types.values())
        todo += [each for each in re.findall(r"[A-Z]\w+", kinds) if hasattr(models, each)]
    lines = []
    for name, model in sorted(found.items(), key=lambda item: short(item[0])):
        fields = sorted(
            (model.attribute_map[each], kind) for each, kind in model.openapi_types.items()
        )
        lines.append(f"{short(name)}:")
        lines += [f"  {field} {word(short(name), field, kind)}" for field, kind in fields]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
