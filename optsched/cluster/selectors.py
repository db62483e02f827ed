"""Label requirements, selectors, taints and tolerations, with the semantics of Kubernetes."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Operator(StrEnum):
    """The operators of label requirements, with the values of the Kubernetes API."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


_INTEGER = re.compile(r"[+-]?[0-9]{1,63}")  # label values have at most 63 characters
_LEAST, _MOST = -(2**63), 2**63 - 1


def _as_int(text: str | None) -> int | None:
    """Parse an integer like Go's `strconv.ParseInt(text, 10, 64)`, which rejects `1_000`."""
    if text is None or not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if _LEAST <= number <= _MOST else None


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label: `key operator values`."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def accepts(self, value: str | None) -> bool:
        """Return whether a label value meets the requirement; None stands for an absent label.

        `NotIn` accepts an absent label. `Gt` and `Lt` accept only integers, as in Kubernetes.
        """
        match self.operator:
            case Operator.IN:
                return value is not None and value in self.values
            case Operator.NOT_IN:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
            case Operator.GT | Operator.LT:
                number, limit = _as_int(value), _as_int(self.values[0] if self.values else None)
                if number is None or limit is None:
                    return False
                return number > limit if self.operator is Operator.GT else number < limit

    def __str__(self) -> str:
        match self.operator:
            case Operator.EXISTS:
                return self.key
            case Operator.DOES_NOT_EXIST:
                return f"!{self.key}"
            case Operator.IN if len(self.values) == 1:
                return f"{self.key}={self.values[0]}"
            case Operator.GT | Operator.LT:
                sign = ">" if self.operator is Operator.GT else "<"
                return f"{self.key}{sign}{self.values[0] if self.values else ''}"
            case _:
                word = "in" if self.operator is Operator.IN else "notin"
                return f"{self.key} {word} ({','.join(self.values)})"


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A conjunction of requirements on labels; an empty conjunction accepts every object."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the selector selects an object with these labels."""
        return all(r.accepts(labels.get(r.key)) for r in self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements)) or "<everything>"


def narrowest_labels(
    selectors: Sequence[LabelSelector | None],
) -> list[tuple[tuple[str, str], ...]]:
    """Return labels for each selector; each selected object has at least one of these labels.

    The labels of a selector come from one requirement with the operator `In`. If a selector has
    several requirements with `In`, the function chooses the requirement whose most frequent label
    is rarest across all selectors. A selector without a requirement with `In` gets no labels.
    """
    named = [
        [
            [(r.key, value) for value in dict.fromkeys(r.values)]
            for r in (selector.requirements if selector is not None else ())
            if r.operator is Operator.IN
        ]
        for selector in selectors
    ]
    number = Counter(label for each in named for labels in each for label in labels)

    # Compare requirements by their most frequent labels.
    return [
        tuple(min(each, key=lambda labels: max((number[n] for n in labels), default=0), default=()))
        for each in named
    ]


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """A conjunction of requirements on a node's labels and name (`v1.NodeSelectorTerm`).

    A term without any requirement selects no node.
    """

    labels: tuple[Requirement, ...] = ()
    names: tuple[Requirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether the term selects a node with this name and these labels."""
        if not self.labels and not self.names:
            return False
        return all(r.accepts(name) for r in self.names) and all(
            r.accepts(labels.get(r.key)) for r in self.labels
        )

    def __str__(self) -> str:
        return ",".join(map(str, (*self.labels, *self.names))) or "<nothing>"


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """A disjunction of node terms (`v1.NodeSelector`); a selector without terms selects no node."""

    terms: tuple[NodeTerm, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether any term selects the node."""
        return any(t.matches(name, labels) for t in self.terms)

    def __str__(self) -> str:
        return " or ".join(map(str, self.terms)) or "<nothing>"


class TaintEffect(StrEnum):
    """The effect of a taint on pods that do not tolerate the taint."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint, which keeps pods without a matching toleration away from a node or device."""

    key: str
    value: str
    effect: TaintEffect

    def __str__(self) -> str:
        mark = f"{self.key}={self.value}" if self.value else self.key
        return f"{mark}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of taints.

    With `exists`, the toleration matches taints with any value, and with any key if `key` is empty.
    If `effect` is None, the toleration matches taints with any effect.
    """

    key: str = ""
    exists: bool = False
    value: str = ""
    effect: TaintEffect | None = None

    def tolerates(self, taint: Taint) -> bool:
        """Return whether this toleration tolerates a taint (Kubernetes `ToleratesTaint`)."""
        if self.effect is not None and self.effect is not taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if not self.key and not self.exists:
            return False
        return self.exists or self.value == taint.value


class TolerationIndex:
    """The tolerations of a pod, indexed so that the time of a test is the same for any number."""

    def __init__(self, tolerations: Iterable[Toleration]) -> None:
        self._values: set[tuple[str, str, TaintEffect | None]] = set()
        self._keys: set[tuple[str, TaintEffect | None]] = set()
        self._effects: set[TaintEffect | None] = set()
        for each in tolerations:
            if each.key and each.exists:
                self._keys.add((each.key, each.effect))
            elif each.key:
                self._values.add((each.key, each.value, each.effect))
            elif each.exists:
                self._effects.add(each.effect)

    def tolerates(self, taint: Taint) -> bool:
        """Return whether one of the tolerations tolerates a taint."""
        return any(
            effect in self._effects
            or (taint.key, effect) in self._keys
            or (taint.key, taint.value, effect) in self._values
            for effect in (None, taint.effect)
        )
