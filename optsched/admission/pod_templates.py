"""Validation of pod templates: the API server creates a PodTemplate in a dry run.

This module translates the API server's response into findings about fields of the reviewed object.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from optsched.admission.findings import MAX_CLAIMS, MAX_CONTAINERS, get_mapping
from optsched.admission.review import TemplateQuestion, TemplateVerdict
from optsched.units import QuantityError, parse_quantity_field
from optsched.units.input_errors import quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from optsched.admission.findings import Review
    from optsched.admission.review import Raw

_MAX_ITEMS: Final = {
    "initContainers": MAX_CONTAINERS,
    "containers": MAX_CONTAINERS,
    "resourceClaims": MAX_CLAIMS,
}
_ROOT: Final = "template"
_METADATA: Final = ("labels", "annotations")
"""Metadata fields for which the API server reports error paths without `metadata`."""
_PATH_IN_WARNING: Final = re.compile(r'(?:^|(?<="))template(?=\.)')
_TYPE_ERROR: Final = re.compile(
    r"cannot unmarshal (?P<found>\w+)(?: (?P<literal>\S+))? into Go struct field \w+\.template"
    r"(?P<path>(?:\.\w+)*) of type (?P<expected>\S+)"
)
_QUANTITY_ERROR: Final = "quantities must match"
_QUANTITY_MAPS: Final = ("requests", "limits", "overhead")
_QUANTITIES: Final = ("sizeLimit", "divisor")
_JSON_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str,
    "number": (int, float),
    "bool": bool,
    "array": list,
    "object": dict,
}


def check_template(template: Mapping[str, Any], path: str, review: Review) -> None:
    """Report the API server's errors and warnings about a pod template.

    `path` is the template's path in the reviewed object, such as spec.tasks[0].template.
    """
    spec = get_mapping(template, "spec")
    for name, max_items in _MAX_ITEMS.items():
        items = spec.get(name)
        num_items = len(items) if isinstance(items, list) else 0
        review.check_count(f"{path}.spec.{name}", num_items, max_items)
    text = json.dumps(template, sort_keys=True)
    question = TemplateQuestion(sha256(text.encode()).hexdigest(), dict(template))
    verdict = review.answer(question, default=TemplateVerdict())
    for field, message in verdict.errors:
        if field:
            below = field.removeprefix(_ROOT)
            metadata_field = below[1:].partition(".")[0].partition("[")[0]
            field_path = f".metadata{below}" if metadata_field in _METADATA else below
            review.deny(f"{path}{field_path}: {message}")
        else:
            for sentence in _locate_decoding_error(message, dict(template), path):
                review.deny(sentence)
    for warning in verdict.warnings:
        review.warn(_PATH_IN_WARNING.sub(path, warning))


def containers_of(template: Mapping[str, Any]) -> Iterator[tuple[str, Raw]]:
    """Yield each container and init container, with its path in the pod spec."""
    spec = get_mapping(template, "spec")
    for kind in ("initContainers", "containers"):
        containers = spec.get(kind)
        for index, container in enumerate(containers if isinstance(containers, list) else ()):
            if isinstance(container, dict):
                yield f"{kind}[{index}]", container


def _locate_decoding_error(message: str, template: Raw, path: str) -> Iterator[str]:
    """Yield a message for each field that the API server may have failed to decode.

    The API server's message omits list indices, and for an invalid quantity it names no field.
    """
    reason = message.partition("cannot be handled as a PodTemplate: ")[2] or message
    type_error = _TYPE_ERROR.search(reason)
    located: list[str] = []
    if type_error:
        found, expected = _JSON_TYPES.get(type_error["found"], ()), type_error["expected"]
        for value_path, value in _values_at(template, type_error["path"].split(".")[1:], path):
            is_found = isinstance(value, found) and isinstance(value, bool) == (found is bool)
            if is_found and type_error["literal"] in (None, json.dumps(value)):
                located.append(
                    f"{value_path}: Invalid value: {quote(value)}: must be of type {expected}"
                )
    elif reason.startswith(_QUANTITY_ERROR):
        for value_path, value in _find_quantities(template, path):
            try:
                parse_quantity_field(value)
            except QuantityError as e:
                located.append(f"{value_path}: Invalid value: {quote(value)}: {e}")
    yield from located or (f"{path}: {reason}",)


def _values_at(value: object, names: list[str], path: str) -> Iterator[tuple[str, object]]:
    """Yield the path and value of each field at the path `names` below `value`."""
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _values_at(each, names, f"{path}[{index}]")
    if not names:
        yield path, value
        if isinstance(value, dict):
            yield from ((f"{path}[{key}]", each) for key, each in value.items())
    elif isinstance(value, dict) and names[0] in value:
        yield from _values_at(value[names[0]], names[1:], f"{path}.{names[0]}")


def _find_quantities(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Yield the path and value of each quantity in a pod template."""
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _find_quantities(each, f"{path}[{index}]")
    elif isinstance(value, dict):
        for name, each in value.items():
            if name in _QUANTITY_MAPS and isinstance(each, dict):
                yield from ((f"{path}.{name}[{key}]", quantity) for key, quantity in each.items())
            elif name in _QUANTITIES:
                yield f"{path}.{name}", each
            else:
                yield from _find_quantities(each, f"{path}.{name}")
