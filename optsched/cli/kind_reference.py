"""Generate docs/crds.md, the reference of all kinds with their fields, types and defaults.

`python -m optsched.cli.kind_reference > docs/crds.md` regenerates the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.cli.base.console import echo
from optsched.formats.files.yaml_text import Document, read_yaml
from optsched.local.assets import shipped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Schema = Mapping[str, Any]

JOB: Final = "Job"
_COMMON: Final = frozenset({"apiVersion", "kind", "metadata"})
_DASH: Final = "–"

_HEAD: Final = """\
# Reference of kinds

This page lists every field of every kind that optsched defines. These files contain the
CustomResourceDefinitions:

```console
$ ls deploy/crds | grep yaml
{files}
```

On a cluster, `kubectl explain queue.spec` prints the description of one field.
`python -m optsched.cli.kind_reference` generates this page from the CustomResourceDefinitions. All
kinds also have `apiVersion`, `kind` and `metadata`.

| column | meaning |
|---|---|
| field | path within the object; `[]` is an element of a list, `{{}}` a value of a map |
| type | `quantity` is a number with a unit, such as `500m` or `2Gi`; `open` accepts any fields |
| default | value that the API server sets; **required** fields have no default |
"""


def kinds_page() -> str:
    """Return the text of docs/crds.md, with one section per kind, sorted by kind."""
    found: dict[str, Schema] = {}
    for path in sorted(shipped("crds").glob("*.yaml")):
        (document,) = [p for p in read_yaml(path.read_text("utf-8")) if isinstance(p, Document)]
        assert isinstance(document.value, dict)  # noqa: S101  a test checks the shipped files
        found[path.name] = document.value
    by_kind = sorted(found.values(), key=lambda each: str(each["spec"]["names"]["kind"]))
    job = next(each["spec"] for each in by_kind if each["spec"]["names"]["kind"] == JOB)
    job_schema = job["versions"][0]["schema"]["openAPIV3Schema"]
    index = ["| kind | version | scope | short names | description |", "|---|---|---|---|---|"]
    sections: list[str] = []
    for definition in by_kind:
        spec = definition["spec"]
        kind, version = spec["names"]["kind"], spec["versions"][0]
        schema = version["schema"]["openAPIV3Schema"]
        short = ", ".join(f"`{name}`" for name in spec["names"].get("shortNames", ())) or _DASH
        index.append(
            f"| [{kind}](#{kind.lower()}) | `{spec['group']}/{version['name']}` | {spec['scope']} "
            f"| {short} | {schema['description']} |"
        )
        shown = {name: f for name, f in schema["properties"].items() if name not in _COMMON}
        job_fields = None if kind == JOB else job_schema["properties"]["spec"]["properties"]
        rows = _format_rows({**schema, "properties": shown}, "", job_fields)
        table = ["| field | type | default | meaning |", "|---|---|---|---|", *rows]
        sections.append(f"## {kind}\n\n{schema['description']}\n\n" + "\n".join(table) + "\n")
    head = [_HEAD.format(files="\n".join(sorted(found))), "## Kinds\n", "\n".join(index) + "\n"]
    return "\n".join([*head, *sections])


def _format_rows(schema: Schema, prefix: str, job_fields: Schema | None) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        default = "**required**" if name in required else _DASH
        if name not in required and "default" in field:
            value = field["default"]
            default = f"`{str(value).lower() if isinstance(value, bool) else value}`"
        meaning = str(field.get("description", _DASH)).replace("|", "\\|").replace("\n", " ")
        if values := [f"`{value}`" for value in field.get("enum", ()) if value != ""]:
            meaning = f"{meaning} One of {', '.join(values)}."
        if "minimum" in field and "maximum" in field:
            meaning = f"{meaning} From {field['minimum']} to {field['maximum']}."
        elif "minimum" in field:
            meaning = f"{meaning} At least {field['minimum']}."
        is_job = job_fields is not None and field.get("properties") == job_fields
        if is_job:
            meaning = f"{meaning} It has the same fields as the `spec` of a [Job](#job)."
        yield f"| `{path}` | {_describe_type(field)} | {default} | {meaning} |"
        if not is_job:
            # Child fields may belong to the items of a list or to the values of a map.
            inner, mark = field, ""
            if "items" in field:
                inner, mark = field["items"], "[]"
            elif isinstance(values := field.get("additionalProperties"), dict):
                inner, mark = values, "{}"
            yield from _format_rows(inner, f"{path}{mark}.", job_fields)


def _describe_type(field: Schema) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "items" in field:
        return f"list of {_describe_type(field['items'])}"
    if isinstance(values := field.get("additionalProperties"), dict):
        return f"map to {_describe_type(values)}"
    if field.get("x-kubernetes-preserve-unknown-fields"):
        return "open"
    if field.get("format") == "date-time":
        return "time"
    return str(field["type"])


if __name__ == "__main__":
    echo(kinds_page(), nl=False)
