"""The declaration of a plugin: its name, its arguments, and the function that builds its rules.

One plugin may build several rules. `predicates` builds one rule per kube-scheduler filter.
`proportion` and `capacity` also build the rules on queue capability and guarantee.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from optsched.units import CPU, MEMORY, parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from optsched.plugins.extension_points import Rule

Value: TypeAlias = bool | int | float | str


class Kind(Enum):
    """The type of value that a plugin argument accepts."""

    SWITCH = "true or false"
    WHOLE = "a whole number"
    DURATION = "a duration such as 90s or 1h30m"
    HOURS = "hours of the day such as 8:30-18:00"
    NUMBER = "a number"
    QUANTITY = "a quantity such as 250m or 200Mi"
    NAMES = "comma-separated resource names"
    TEXT = "a string"
    URL = "an address that begins with http:// or https://"
    CHOICE = "one of several words"
    MAPPING = "a mapping of further arguments"
    LIST = "a list of mappings"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a plugin.

    A name that ends in `*` matches every longer name that begins with the text before the `*`.

    Attributes
    ----------
    least
        The smallest accepted number, or None if the argument has no lower bound.
    fields
        The nested arguments of a mapping, or of each mapping in a list. Rules read nested arguments
        by dotted names, such as `sra.enable` in a mapping or `strategies.0.name` in a list.
    choices
        The accepted values of an argument of kind `CHOICE`.

    """

    name: str
    kind: Kind
    default: Value
    meaning: str
    least: float | None = 0
    fields: tuple[Argument, ...] = ()
    choices: tuple[str, ...] = ()

    def accepts(self, name: str) -> bool:
        """Return whether this declaration applies to an argument named `name`."""
        if self.name.endswith("*"):
            return name.startswith(self.name[:-1]) and len(name) >= len(self.name)
        return name == self.name


@dataclass(frozen=True, slots=True)
class LevelKind:
    """An objective level that a scheduling model may list by name.

    Attributes
    ----------
    rank
        The importance of the level in models that do not list levels; the smallest rank comes
        first.
    rules
        Names of the rules that define the level. If several rules define the level, the objective
        has one level per rule, in the order of the rules in the policy.

    """

    name: str
    meaning: str
    rank: int
    rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin that a configuration may name.

    Attributes
    ----------
    name
        The name in configurations: lower-case words joined by hyphens.
    meaning
        The purpose of the plugin in a few words, which `optsched` prints next to the name.
    arguments
        The arguments that a configuration may set. An argument that is not declared is reported as
        an error, with its line in the file.
    build
        The function that builds the rules from checked arguments. The arguments include the
        switches `enableHierarchy` and `enableReclaimable`.
    origin
        The file or package that defines the plugin; empty for built-in plugins.
    aliases
        Alternative names of the plugin that configurations may use.
    levels
        The levels that a model may list if the plugin is enabled, except the node score level.

    """

    name: str
    meaning: str
    arguments: tuple[Argument, ...]
    build: Callable[[Mapping[str, Value]], tuple[Rule, ...]]
    origin: str = ""
    aliases: tuple[str, ...] = ()
    levels: tuple[LevelKind, ...] = ()


def read_whole(arguments: Mapping[str, Value], name: str, default: int) -> int:
    """Return an argument as an integer, or the default if the argument is not set."""
    return int(arguments.get(name, default))


def read_duration_ms(arguments: Mapping[str, Value], name: str) -> int | None:
    """Return an argument's duration in milliseconds, or None if the argument is not set."""
    return parse_duration_ms(str(arguments[name])) if name in arguments else None


def read_names(arguments: Mapping[str, Value], name: str) -> list[str]:
    """Return the names in a comma-separated argument."""
    listed = str(arguments.get(name, "")).split(",")
    return [part.strip() for part in listed if part.strip()]


def read_resource_weights(arguments: Mapping[str, Value], prefix: str) -> dict[str, int]:
    """Return the weights of CPU, of memory and of each resource in `<prefix>.resources`.

    A resource without a weight gets the weight 1.
    """
    weights = {
        CPU: read_whole(arguments, f"{prefix}.cpu", 1),
        MEMORY: read_whole(arguments, f"{prefix}.memory", 1),
    }
    for name in read_names(arguments, f"{prefix}.resources"):
        weights[name] = read_whole(arguments, f"{prefix}.resources.{name}", 1)
    return weights
