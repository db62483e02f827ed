"""Pods that nobody would write: one or two fields of a good one hold something else.

Fields come from the table of types, so every field of a pod has its turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

Raw = dict[str, Any]

_WORDS: Final = {
    "action": ("Restart", "Stop"),
    "effect": ("NoSchedule", "NoExecute", "Never"),
    "fieldPath": ("metadata.name", "status.podIP", "metadata.labels['a']", "spec.x"),
    "operator": ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Equal", "Is"),
    "resource": ("limits.cpu", "requests.memory", "limits.gpu"),
    "resourceName": ("cpu", "memory", "gpu"),
    "restartPolicy": ("Always", "OnFailure", "Never", "NotRequired", "RestartContainer"),
    "type": ("Localhost", "RuntimeDefault", "Unconfined", "Directory"),
    "whenUnsatisfiable": ("DoNotSchedule", "ScheduleAnyway", "Never"),
    "protocol": ("TCP", "UDP", "tcp"),
    "procMount": ("Default", "Unmasked"),
    "mountPropagation": ("None", "HostToContainer", "Bidirectional"),
    "recursiveReadOnly": ("Disabled", "Enabled", "IfPossible"),
    "ip": ("10.0.0.1", "fd00::1"),
    "nameservers": ("10.0.0.1", "fd00::1", "host"),
}
_TEXTS: Final = (
    *("", "a", "v", "c", "k/a", "A b", "a..b", "../x", "/x", "x/y", "-", "1", "a" * 64, "é"),
    *("None", "Always", "Never", "10.0.0.1"),
)
_NUMBERS: Final = (0, 1, 2, 10, 30, 80, 100, 511, 600, 70000, -1, 2**31 - 1, 2**31, 2**63)
_AMOUNTS: Final = ("1", 2, "500m", "-1", "1Gi", "4Mi", "x", "0", None)
_NAMES: Final = (
    *("cpu", "memory", "nvidia.com/gpu", "hugepages-2Mi", "pods", "requests.a/b"),
    *("ephemeral-storage", "a.kubernetes.io/b", "a b"),
)
_STRANGE: Final[tuple[Any, ...]] = (None, [], {}, "text", 7, True, 1.5)

_OFTEN: Final = frozenset(
    {"name", "key", "operator", "path", "port", "topologyKey", "image", "mountPath", "type"}
)
_DEEPEST: Final = 4
_CHOICES: Final[dict[str, tuple[Any, ...]]] = {
    "int32": _NUMBERS,
    "int64": _NUMBERS,
    "boolean": (True, False),
    "quantity": _AMOUNTS,
    "port": (80, 0, "http", "a--b", 70000),
    "time": ("2026-01-31T08:00:00Z", "now", ""),
    "any": _STRANGE,
}


def base() -> Raw:
    """A pod as users write it, with something of most kinds of parts."""
    return {
        "containers": [
            {
                "name": "c",
                "image": "i",
                "ports": [{"containerPort": 80, "name": "http"}],
                "env": [{"name": "A", "value": "x"}],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
            }
        ],
        "initContainers": [{"name": "i", "image": "i"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "tolerations": [{"key": "a", "operator": "Exists"}],
    }


class RandomPods:
    """Makes specs of pods; types: the fields that may be set, as in `pod_types`."""

    def __init__(self, random: Random, types: Mapping[str, Mapping[str, str]]) -> None:
        self._random = random
        self._types = types

    def spec(self) -> Raw:
        """The spec of a pod."""
        spec = base()
        for _ in range(self._random.choice((1, 1, 2))):
            self._change(spec, "PodSpec")
        return spec

    def _change(self, record: Raw, kind: str) -> None:
        """Go down to a part that is there, and set one of its fields."""
        random, fields = self._random, self._types[kind]
        name = random.choice(sorted(fields))
        inner = fields[name].strip("[]{}")
        held = record.get(name)
        if inner in self._types and held and random.random() < 0.8:
            place = random.choice(held if isinstance(held, list) else [held])
            if isinstance(place, dict):
                self._change(place, inner)
                return
        record[name] = self._value(name, fields[name], 0)

    def _value(self, name: str, kind: str, depth: int) -> Any:
        random = self._random
        if random.random() < 0.03:
            return random.choice(_STRANGE)
        num_parts = random.choice((0, 1, 1, 2))
        if kind[0] == "[":
            return [self._value(name, kind[1:-1], depth) for _ in range(num_parts)]
        if kind[0] == "{":
            keys = random.sample(_NAMES if kind == "{quantity}" else _TEXTS, num_parts)
            return {key: self._value(name, kind[1:-1], depth) for key in keys}
        if kind in self._types:
            return self._record(kind, depth)
        choices = _CHOICES.get(kind)
        if choices is None:
            words = _WORDS.get(name, _TEXTS)
            choices = words if random.random() < 0.8 else _TEXTS
        return random.choice(choices)

    def _record(self, kind: str, depth: int) -> Raw:
        fields = self._types[kind]
        chosen = [
            each
            for each in sorted(fields)
            if self._random.random() < (0.8 if each in _OFTEN else 0.25)
        ]
        if depth > _DEEPEST:
            chosen = chosen[:2]
        return {each: self._value(each, fields[each], depth + 1) for each in chosen}
