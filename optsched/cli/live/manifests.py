"""Read manifests from files, and build manifests from flags.

Each error in a file states file, line, field and value.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from optsched.admission.names import is_qualified
from optsched.api.crds import unknown_fields
from optsched.api.job import parse_job
from optsched.api.jobflow import parse_jobflow, parse_jobtemplate
from optsched.api.kinds import COMMAND, JOB, JOB_FLOW, JOB_TEMPLATE, QUEUE
from optsched.api.meta import parse_meta
from optsched.cli.base.connection import Exit, Failure
from optsched.cli.base.options import MOST_INT32, ParsedText, WholeNumber
from optsched.cli.base.path_arguments import check_finite, check_path, read_standard_input
from optsched.formats.files.yaml_text import Document, TextError, line_of, read_yaml
from optsched.units import (
    CPU,
    EPHEMERAL_STORAGE,
    GPU,
    HUGEPAGES_PREFIX,
    MEMORY,
    PODS,
    FieldError,
    QuantityError,
    is_gpu,
    why_no_whole_amount,
)
from optsched.units.input_errors import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from optsched.api.kinds import Kind
    from optsched.cli.base.options import Command


DEFAULT_AMOUNTS: Final = "cpu=1000m,memory=100Mi"
_JOB_LABEL: Final = "job.volcano.sh"
_RESOURCES: Final = (CPU, MEMORY, EPHEMERAL_STORAGE, PODS)
_FORM: Final = "write NAME=QUANTITY, separated by commas, such as cpu=4,memory=8Gi"


def _parse_amounts(value: str) -> dict[str, str]:
    """Return the quantity of each resource in a text such as `cpu=1,memory=2Gi`, as written."""
    found: dict[str, str] = {}
    for part in filter(None, value.split(",")):
        resource, _, quantity = (word.strip() for word in part.partition("="))
        if not resource or not quantity:
            raise ValueError(f"{part!r} is not an amount of a resource: {_FORM}")
        is_known = resource in _RESOURCES or resource.startswith(HUGEPAGES_PREFIX)
        if not is_known and not ("/" in resource and is_qualified(resource)):
            # Unknown resource names without a domain, such as `cpus` and `gpu`, are typing errors.
            close = get_close_matches(resource, _RESOURCES, n=1)
            meant = GPU if is_gpu(f"/{resource.lower().removesuffix('s')}") else "".join(close)
            hint = f"; did you mean {meant}?" if meant else ""
            accepted = f"write {', '.join(_RESOURCES)} or DOMAIN/NAME, such as {GPU}"
            raise ValueError(f"{resource!r} is not a resource of pods: {accepted}{hint}")
        try:
            problem = why_no_whole_amount(resource, quantity)
        except QuantityError as e:
            problem = str(e)
        if problem:
            raise ValueError(f"{resource}: {problem}")
        if resource in found:
            raise ValueError(f"{resource} is given more than once")
        found[resource] = quantity
    return found


AMOUNTS: Final = ParsedText("name=quantity,…", _parse_amounts)
"""Option type for resource amounts; quantities are checked but not converted."""

COUNT: Final = WholeNumber(0, MOST_INT32)
"""Option type for a number of pods."""


@dataclass(frozen=True, slots=True)
class JobFlags:
    """Values of the flags that describe a job with one task.

    `limits` holds the limit of each resource; None means that the requests are also the limits.
    `command` is the command line in shell syntax.
    """

    name: str
    image: str = "busybox"
    minimum: int = 1
    replicas: int = 1
    requests: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] | None = None
    scheduler: str = "volcano"
    queue: str = ""
    command: str = ""
    priority_class: str = ""


def job_manifest(flags: JobFlags, namespace: str) -> dict[str, Any]:
    """Return the manifest of a job with one task, in the form that `vcctl job run` creates.

    Raises click.UsageError if a quote in the command line is not closed.
    """
    limits = flags.requests if flags.limits is None else flags.limits
    try:
        command = shlex.split(flags.command)
    except ValueError as e:
        message = f"--command: {flags.command!r}: a quote is not closed"
        raise click.UsageError(message) from e
    container = {
        # A container name is a DNS label, while a job name may contain dots.
        "name": flags.name.replace(".", "-"),
        "image": flags.image,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"requests": dict(flags.requests), "limits": dict(limits)},
        **({"command": command} if command else {}),
    }
    template = {
        "metadata": {"name": flags.name, "labels": {_JOB_LABEL: flags.name}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    spec = {
        "schedulerName": flags.scheduler,
        "minAvailable": flags.minimum,
        **({"queue": flags.queue} if flags.queue else {}),
        **({"priorityClassName": flags.priority_class} if flags.priority_class else {}),
        "tasks": [{"replicas": flags.replicas, "template": template}],
    }
    meta = {"name": flags.name, "namespace": namespace}
    return {"apiVersion": JOB.api_version, "kind": JOB.kind, "metadata": meta, "spec": spec}


@dataclass(frozen=True, slots=True)
class QueueFlags:
    """Values of the flags that describe a queue; an omitted flag is None or empty."""

    weight: int | None = None
    parent: str = ""
    priority: int | None = None
    reclaimable: bool | None = None
    capability: Mapping[str, str] | None = None
    deserved: Mapping[str, str] | None = None
    guarantee: Mapping[str, str] | None = None


def queue_spec(flags: QueueFlags) -> dict[str, Any]:
    """Return the queue spec fields that the flags set; these fields also serve as a merge patch."""
    values = {
        "weight": flags.weight,
        "parent": flags.parent or None,
        "priority": flags.priority,
        "reclaimable": flags.reclaimable,
        "capability": flags.capability,
        "deserved": flags.deserved,
        "guarantee": None if flags.guarantee is None else {"resource": flags.guarantee},
    }
    return {name: value for name, value in values.items() if value is not None}


def queue_manifest(name: str, flags: QueueFlags) -> dict[str, Any]:
    """Return the manifest of a queue."""
    head = {"apiVersion": QUEUE.api_version, "kind": QUEUE.kind, "metadata": {"name": name}}
    return {**head, "spec": queue_spec(flags)}


def command_manifest(
    kind: Kind, obj: Mapping[str, Any], action: str, namespace: str
) -> dict[str, Any]:
    """Return a Command whose target and owner is the given object (Volcano `CreateJobCommand`)."""
    meta = obj["metadata"]
    target = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": meta["name"],
        "uid": meta.get("uid", ""),
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": COMMAND.api_version,
        "kind": COMMAND.kind,
        "metadata": {
            "generateName": f"{meta['name']}-{action.lower()}-",
            "namespace": namespace,
            "ownerReferences": [target],
        },
        "target": target,
        "action": action,
    }


STDIN: Final = "-"
_PARSERS: Final = {JOB: parse_job, JOB_FLOW: parse_jobflow, JOB_TEMPLATE: parse_jobtemplate}
_LIST: Final = "List"
_NO_OBJECT: Final = "is not a Kubernetes object: write apiVersion, kind and metadata.name"


def file_option(help_text: str, name: str, **options: Any) -> Callable[[Command], Command]:  # noqa: ANN401  click's
    """Add `-f` with the long forms `--filename` (kubectl) and `--file` (Volcano).

    `name` names the command parameter that receives the path. `options` are arguments of
    `click.option`.
    """
    return click.option("-f", "--filename", "--file", name, help=help_text, **options)


@dataclass(frozen=True, slots=True)
class Manifest:
    """An object in a file, with its `file:line` and warnings about unknown fields."""

    obj: dict[str, Any]
    where: str
    remarks: tuple[str, ...] = ()

    @property
    def namespace(self) -> str:
        """The namespace in the manifest; empty if the manifest names no namespace."""
        return str(self.obj["metadata"].get("namespace") or "")

    @property
    def name(self) -> str:
        """The name of the object."""
        return str(self.obj["metadata"]["name"])


def read_manifests(path: str, kind: Kind) -> tuple[Manifest, ...]:
    """Read the objects of a kind from a file, or from stdin if the path is `-`.

    Raises `Failure` with `Exit.USAGE` if the file cannot be read or has errors. The message of the
    `Failure` lists all errors, each with `file:line`.
    """
    text, name = _read_file(path)
    problems: list[str] = []
    found = [
        _read_manifest(kind, part, problems) for part in _parse_documents(text, name, problems)
    ]
    if not found and not problems:
        problems.append(f"{name}: contains no {kind}")
    if problems:
        raise Failure("\n".join(problems), Exit.USAGE)
    return tuple(each for each in found if each is not None)


def read_file_objects(path: str) -> tuple[FileObject, ...]:
    """Read the objects of all kinds from a file, or from stdin if the path is `-`.

    Raises `Failure` if the file cannot be read, or if a document is not an object with a name.
    """
    text, name = _read_file(path)
    problems: list[str] = []
    found = tuple(_parse_documents(text, name, problems))
    for part in found:
        if not has_object_fields(part.value) or not isinstance(
            part.value["metadata"].get("name"), str
        ):
            # The messages about errors in the metadata are more precise than `_NO_OBJECT`.
            errors: list[FieldError] = []
            if has_object_fields(part.value):
                parse_meta(part.value, errors)
            if errors:
                problems += part.describe_errors(str(part.value["kind"]), errors)
            else:
                problems.append(f"{part.location()}: {_NO_OBJECT}")
    if not found and not problems:
        problems.append(f"{name}: contains no object")
    if problems:
        raise Failure("\n".join(problems), Exit.USAGE)
    return found


def has_object_fields(value: object) -> bool:
    """Return whether a value is a mapping with the fields apiVersion, kind and metadata."""
    if not isinstance(value, dict) or not isinstance(value.get("metadata"), dict):
        return False
    return all(isinstance(value.get(field), str) for field in ("apiVersion", "kind"))


def check_manifests(manifests: Sequence[Manifest], namespace: str) -> None:
    """Raise `Failure` for manifests outside `namespace`; an empty `namespace` allows any."""
    wrong = [m for m in manifests if namespace and m.namespace not in ("", namespace)]
    if wrong:
        lines = (
            f"{m.where}: metadata.namespace: {m.namespace} differs from -n {namespace}"
            for m in wrong
        )
        raise Failure("\n".join(lines), Exit.USAGE)


def _read_file(path: str) -> tuple[str, str]:
    name = "standard input" if path == STDIN else path
    check_path(path)
    try:
        if path == STDIN:
            data = read_standard_input()
        else:
            check_finite(Path(path))
            data = Path(path).read_bytes()
        return data.decode("utf-8-sig"), name
    except IsADirectoryError as e:
        raise Failure(f"{path}: is a folder: name a file in it", Exit.USAGE) from e
    except FileNotFoundError as e:
        raise Failure(f"{path}: there is no such file", Exit.USAGE) from e
    except OSError as e:
        raise Failure(f"{path}: cannot be read: {e.strerror}", Exit.USAGE) from e
    except UnicodeDecodeError as e:
        raise Failure(f"{name}: is not UTF-8 text", Exit.USAGE) from e


@dataclass(frozen=True, slots=True)
class FileObject:
    """An object in a file: a YAML document, or an element of a List.

    `prefix` is the path of the List element in its document, or empty for a document.
    """

    value: Any
    file: str
    text: str
    document: Document
    prefix: str = ""

    def location(self, path: str = "") -> str:
        """Return the `file:line` of the field at `path`."""
        return f"{self.file}:{self.line(path)}"

    def line(self, path: str) -> int:
        """Return the line number of the field at `path`."""
        whole = ".".join(part for part in (self.prefix, path) if part)
        return line_of(self.text, self.document, whole)

    def describe_errors(self, head: str, errors: Iterable[FieldError]) -> list[str]:
        """Return a message for each error, sorted by line number."""
        placed = sorted((self.line(error.path), str(error)) for error in errors)
        return [f"{self.file}:{line}: {head}: {text}" for line, text in placed]


def _parse_documents(text: str, file: str, problems: list[str]) -> Iterator[FileObject]:
    for document in read_yaml(text):
        if isinstance(document, TextError):
            problems.append(f"{file}:{document.line}:{document.column}: {document.message}")
            continue
        value = document.value
        if isinstance(value, dict) and value.get("kind") == _LIST:
            items = value.get("items") or []
            if not isinstance(items, list):
                line = line_of(text, document, "items")
                problems.append(f"{file}:{line}: List: items: is not a list of objects")
                continue
            for i, item in enumerate(items):
                yield FileObject(item, file, text, document, f"items[{i}]")
        elif value is not None:
            yield FileObject(value, file, text, document)


def _read_manifest(kind: Kind, part: FileObject, problems: list[str]) -> Manifest | None:
    if not isinstance(part.value, dict):
        problems.append(
            f"{part.location()}: {quote(part.value)} is not an object: a {kind} is expected"
        )
        return None
    for key, wanted in (("kind", kind.kind), ("apiVersion", kind.api_version)):
        given = part.value.get(key)
        if given != wanted:
            what = "is missing" if given is None else "is not expected here"
            mismatch = FieldError(key, given, f"{what}: write {wanted}")
            problems.append(f"{part.location(key)}: {mismatch}")
            return None
    _, errors = _PARSERS[kind](part.value)
    meta = part.value.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    head = f"{kind} {name}" if isinstance(name, str) else str(kind)
    problems += part.describe_errors(head, errors)
    remarks = part.describe_errors(head, unknown_fields(kind, part.value))
    return None if errors else Manifest(part.value, part.location(), tuple(remarks))
