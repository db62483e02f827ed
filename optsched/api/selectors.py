"""Selectors of objects by label (`meta/v1.LabelSelector`), as fields of custom kinds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from optsched.api.schema import Schema, listing, mapping, record, text, texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.fields import Fields

_OPERATORS: Final = ["In", "NotIn", "Exists", "DoesNotExist"]


@dataclass(frozen=True, slots=True)
class LabelCondition:
    """One condition on one label. operator: In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Conditions that hold together; without any, every object is meant."""

    match_labels: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[LabelCondition, ...] = ()


def label_selector(description: str) -> Schema:
    """The schema of a selector."""
    return record(
        description,
        matchLabels=mapping("Labels with the values they must have.", {"type": "string"}),
        matchExpressions=listing(
            "Conditions on labels.",
            record(
                "One condition on one label.",
                ("key", "operator"),
                key=text("Name of the label."),
                operator=text("How its value compares with the list.", enum=_OPERATORS),
                values=texts("Values to compare with."),
            ),
        ),
    ) | {"x-kubernetes-map-type": "atomic"}


def read_selector(fields: Fields) -> LabelSelector:
    """The selector that fields of that schema hold."""
    return LabelSelector(
        match_labels=fields.texts_by_name("matchLabels"),
        conditions=tuple(
            LabelCondition(each.text("key"), each.text("operator"), each.texts("values"))
            for each in fields.records("matchExpressions")
        ),
    )
