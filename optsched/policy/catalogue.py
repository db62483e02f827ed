"""Declare the built-in actions, and load the plugins and actions that a policy may name.

A custom plugin or action is defined by a Python file in a folder or by an entry point of an
installed package (see docs/plugins.md). The caller provides the entry points and the function that
reads files.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from optsched.plugins.custom.isolation import BUILT_IN_POINTS, HARMFUL
from optsched.plugins.custom.proposals import Action, Proposer
from optsched.plugins.declaration import Argument, Kind, Plugin
from optsched.plugins.extension_points import Rule, Switch
from optsched.plugins.registry import ALIASES, JOB_PLUGINS, PLUGINS
from optsched.plugins.ruleset import RuleSet
from optsched.policy.diagnostic import Diagnostic, PolicyError, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from optsched.plugins.custom.proposals import Propose
    from optsched.plugins.declaration import Value

ENTRY_POINTS: Final = "optsched.plugins"
"""The entry point group with which packages provide plugins."""

ACTION_ENTRY_POINTS: Final = "optsched.actions"
"""The entry point group with which packages provide actions."""

SYMBOL: Final = "PLUGIN"
"""The name of the variable to which a plugin file assigns its plugin."""

ACTION_SYMBOL: Final = "ACTION"
"""The name of the variable to which a plugin file assigns its action."""

_Kind = TypeVar("_Kind", Plugin, Action)

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_ACCEPTED: Final = f"write `{SYMBOL} = Plugin(name, meaning, arguments, build)`"
_ACCEPTED_ACTION: Final = f"write `{ACTION_SYMBOL} = Action(name, meaning, arguments, build)`"

Files = tuple[tuple[str, str], ...]
"""The (path, text) pair of each file in a plugin folder, sorted by path."""

# --- built-in actions ----------------------------------------------------------------------------

NEED_SOLVER: Final = frozenset({"consolidation"})
"""Actions that have no effect without a solver."""

_CACHE = Argument(
    "predicateErrorCacheEnable",
    Kind.SWITCH,
    True,
    "has no effect: failures are cached by task class",
)
_BY_GANG = (
    Argument("maxDomains", Kind.WHOLE, 8, "maximum number of topology domains to try", least=1),
    Argument("allowWholeBundle", Kind.SWITCH, True, "whether an entire gang may be evicted"),
)
_PREEMPT = (
    _CACHE,
    Argument(
        "enableTopologyAwarePreemption",
        Kind.SWITCH,
        False,
        "without a solver: order nodes by the cost of the evicted pods, not by score",
    ),
    Argument(
        "topologyAwarePreemptWorkerNum",
        Kind.WHOLE,
        16,
        "has no effect: a single thread is used",
        least=1,
    ),
    Argument("minCandidateNodesPercentage", Kind.WHOLE, 10, "has no effect: all nodes are tried"),
    Argument("minCandidateNodesAbsolute", Kind.WHOLE, 1, "has no effect: all nodes are tried"),
    Argument(
        "maxCandidateNodesAbsolute", Kind.WHOLE, 100, "has no effect: all nodes are tried", least=1
    ),
)
_MOVING = (
    Argument("maxMoves", Kind.WHOLE, 0, "maximum number of pods moved in one session; 0: no limit"),
)

ACTIONS: Final = {
    action.name: action
    for action in (
        Action(
            "enqueue",
            "sets gangs to Inqueue if capacity may suffice; controllers then create their pods; "
            "without this action, `allocate` sets all gangs to Inqueue",
        ),
        Action("allocate", "places gangs", (_CACHE,)),
        Action("backfill", "places pods that request no resources", (_CACHE,)),
        Action("preempt", "evicts pods of lower priority in the same queue", _PREEMPT),
        Action(
            "reclaim",
            "evicts pods of queues above their share, to place pods of queues below their share",
            (_CACHE,),
        ),
        Action("shuffle", "evicts pods that plugins select to be moved"),
        Action("gangpreempt", "preempts gang by gang", _BY_GANG),
        Action("consolidation", "moves running pods so that waiting gangs fit", _MOVING),
        Action("gangreclaim", "reclaims gang by gang", _BY_GANG),
    )
}
"""The built-in actions, keyed by name.

Actions and arguments have the same names as in Volcano (`pkg/scheduler/actions`). The name
`consolidation` comes from KAI-Scheduler.
"""


# --- custom plugins and actions ------------------------------------------------------------------


class EntryPoint(Protocol):
    """An entry point with the attributes of `importlib.metadata.EntryPoint`."""

    @property
    def name(self) -> str:
        """The name of the plugin or action in policies."""

    @property
    def value(self) -> str:
        """The object to import, as `module:attribute`."""

    def load(self) -> Any:  # noqa: ANN401  any object
        """Import the module of the entry point and return the attribute that `value` names."""


def _no_files(folder: Path) -> Files:
    raise FileNotFoundError(folder)


@dataclass(frozen=True)
class PluginSource:
    """The folder and the entry points from which custom plugins and actions are loaded.

    Attributes
    ----------
    folder
        The folder with plugin files, or None.
    read
        A function that returns the (path, text) pair of each file in a folder, sorted by path.
        `read` may raise OSError or UnicodeError.
    entries
        The entry points in the group `optsched.plugins`.
    action_entries
        The entry points in the group `optsched.actions`.
    """

    folder: Path | None = None
    read: Callable[[Path], Files] = _no_files
    entries: Sequence[EntryPoint] = ()
    action_entries: Sequence[EntryPoint] = ()
    _modules: dict[tuple[str, str], ModuleType] = field(default_factory=dict, repr=False)

    def read_files(self) -> Files:
        """Return the (path, text) pair of each file in `folder`.

        Raises `PolicyError` if the folder cannot be read.
        """
        if self.folder is None:
            return ()
        try:
            return self.read(self.folder)
        except (OSError, UnicodeError) as e:
            message = "holds a file that is not in UTF-8"
            if isinstance(e, FileNotFoundError):
                message = "there is no such folder of plugins"
            elif isinstance(e, OSError):
                message = f"cannot be read: {e.strerror or e}"
            raise PolicyError([Diagnostic(str(self.folder), 0, 0, "", message)]) from e

    def build_catalogue(self, files: Files) -> Catalogue:
        """Return the built-in plugins and actions, those in `files`, and those of the entry points.

        If a file has an error, raises `PolicyError` with all errors.
        """
        problems: list[Diagnostic] = []
        found, actions = dict(PLUGINS), dict(ACTIONS)
        for path, text in files:
            self._read_file(path, text, (found, actions), problems)
        if any(p.severity is Severity.ERROR for p in problems):
            raise PolicyError(problems)
        entries, hidden = _drop_duplicates(self.entries, found, ENTRY_POINTS)
        own, more = _drop_duplicates(self.action_entries, actions, ACTION_ENTRY_POINTS)
        return Catalogue(found, entries, (*hidden, *more), actions, own)

    def _read_file(
        self,
        path: str,
        text: str,
        taken: tuple[dict[str, Plugin], dict[str, Action]],
        problems: list[Diagnostic],
    ) -> None:
        """Add the plugin and action that a file defines to `taken`, or an error to `problems`."""
        plugins, actions = taken
        try:
            defined = vars(self._load_module(path, text))
        except HARMFUL as e:
            if isinstance(e, SyntaxError) and e.filename == path:
                message = f"is not Python: {e.msg}"
                problem = _line_diagnostic(path, text, e.lineno or 0, message)
                problems.append(replace(problem, column=e.offset or 1))
                return
            frames = [f for f in extract_tb(e.__traceback__) if f.filename == path]
            line = (frames[-1].lineno or 0) if frames else 0
            message = f"cannot be loaded: {_describe_error(e)}"
            problems.append(_line_diagnostic(path, text, line, message))
            return
        if ACTION_SYMBOL in defined:
            line, action = _find_line(text, ACTION_SYMBOL), defined[ACTION_SYMBOL]
            wrong = _find_action_mistake(action, actions)
            if wrong is None:
                actions[action.name] = _complete_action(action, f"{path}:{line}")
            else:
                problems.append(_line_diagnostic(path, text, line, *wrong))
            if SYMBOL not in defined:
                return
        line, plugin = _find_line(text, SYMBOL), defined.get(SYMBOL)
        wrong = _find_plugin_mistake(plugin, plugins)
        if wrong is None and plugin is not None:
            plugins[plugin.name] = _complete_plugin(plugin, f"{path}:{line}")
        elif wrong is not None:
            problems.append(_line_diagnostic(path, text, line, *wrong))

    def _load_module(self, path: str, text: str) -> ModuleType:
        """Return the module of a plugin file; its code runs again only if the file changes."""
        if (path, text) not in self._modules:
            digest = sha256(f"{path}\n{text}".encode()).hexdigest()[:12]
            module = ModuleType(f"optsched_plugin_{Path(path).stem}_{digest}")
            module.__file__ = path
            code = compile(text, path, "exec")
            sys.modules[module.__name__] = module  # `dataclasses` needs this entry
            try:
                exec(code, vars(module))  # noqa: S102  runs a custom plugin
            except HARMFUL:
                del sys.modules[module.__name__]
                raise
            self._modules[path, text] = module
        return self._modules[path, text]


@dataclass(frozen=True)
class Catalogue:
    """The plugins and actions that policies may name.

    Attributes
    ----------
    plugins, actions
        The loaded plugins and actions, keyed by name.
    entries, action_entries
        Entry points of plugins and actions, keyed by name. An entry point is loaded when a policy
        names its plugin or action.
    warnings
        A warning for each entry point whose name a loaded plugin or action already has.
    """

    plugins: Mapping[str, Plugin]
    entries: Mapping[str, EntryPoint]
    warnings: tuple[Diagnostic, ...]
    actions: Mapping[str, Action]
    action_entries: Mapping[str, EntryPoint]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all plugins that a policy may name."""
        return (*self.plugins, *self.entries)

    @property
    def action_names(self) -> tuple[str, ...]:
        """The names of all actions that a policy may name."""
        return (*self.actions, *self.action_entries)

    def find_plugin(self, name: str) -> Plugin | str | None:
        """Return the named plugin, an error message if it cannot be loaded, or None if unknown."""
        if name in self.plugins:
            return self.plugins[name]
        if name not in self.entries:
            return None
        return _load_entry(
            self.entries[name], ENTRY_POINTS, self.plugins, _find_plugin_mistake, _complete_plugin
        )

    def find_action(self, name: str) -> Action | str | None:
        """Return the named action, an error message if it cannot be loaded, or None if unknown."""
        if name in self.actions:
            return self.actions[name]
        if name not in self.action_entries:
            return None
        entry = self.action_entries[name]
        return _load_entry(
            entry, ACTION_ENTRY_POINTS, self.actions, _find_action_mistake, _complete_action
        )


def _load_entry(
    entry: EntryPoint,
    group: str,
    taken: Mapping[str, _Kind],
    find_mistake: Callable[[object, Mapping[str, _Kind]], tuple[str, str] | None],
    complete: Callable[[_Kind, str], _Kind],
) -> _Kind | str:
    """Load the plugin or action of an entry point, or return an error message.

    `taken` contains the loaded plugins or actions, keyed by name. `find_mistake` returns the first
    error in the loaded object, for example a wrong type.
    """
    where = f"entry point {group}: {entry.name} = {entry.value}"
    try:
        loaded: _Kind = entry.load()
    except HARMFUL as e:
        return f"{where} cannot be loaded: {_describe_error(e)}"
    wrong = find_mistake(loaded, taken)
    if wrong is not None:
        return f"{where}: {wrong[0]}"
    if loaded.name != entry.name:
        noun = "plugin" if group == ENTRY_POINTS else "action"
        return f"{where}: the {noun} calls itself {loaded.name}; both names must be the same"
    return complete(loaded, f"entry point {entry.value}")


def _complete_plugin(plugin: Plugin, origin: str) -> Plugin:
    """Return a custom plugin whose `build` receives all declared arguments and no others."""
    defaults = dict(_defaults(plugin.arguments))
    build = plugin.build

    def built(given: Mapping[str, Value]) -> tuple[Rule, ...]:
        declared = _select_declared(given, plugin.arguments)
        rules: object = build({**defaults, **declared})
        is_list = isinstance(rules, Iterable) and not isinstance(rules, Rule)
        return tuple(rules) if is_list else (rules,)  # type: ignore[arg-type,return-value]

    return replace(plugin, build=built, origin=origin)


def _complete_action(action: Action, origin: str) -> Action:
    """Return a custom action whose `build` receives all declared arguments and no others."""
    defaults = dict(_defaults(action.arguments))
    build = action.build

    def built(given: Mapping[str, Value]) -> Propose:
        propose = (
            build({**defaults, **_select_declared(given, action.arguments)}) if build else None
        )
        if not callable(propose):
            raise TypeError(f"build returned {type(propose).__name__}, not a function")
        return propose

    return replace(action, build=built, origin=origin)


def build_proposer(action: Action, arguments: Mapping[str, Value]) -> Proposer | str:
    """Build a custom action's proposer; return an error message if `build` rejects `arguments`."""
    if action.build is None:
        return f"{action.name} is not a custom action"
    try:
        return Proposer(action.name, action.build(arguments))
    except HARMFUL as e:
        return f"does not accept these arguments: {_describe_error(e)}"


def _select_declared(given: Mapping[str, Value], arguments: Sequence[Argument]) -> dict[str, Value]:
    return {
        n: v
        for n, v in given.items()
        if any(a.accepts(n) or n.startswith(f"{a.name}.") for a in arguments)
    }


def _defaults(arguments: Iterable[Argument]) -> Iterator[tuple[str, Value]]:
    """Yield the name and default of each argument; a field of a mapping has a dotted name."""
    for argument in arguments:
        if argument.name.endswith("*"):
            continue
        if argument.kind is not Kind.MAPPING:
            yield argument.name, argument.default
        for name, default in _defaults(argument.fields):
            yield f"{argument.name}.{name}", default


# --- checks --------------------------------------------------------------------------------------


def _find_plugin_mistake(plugin: object, taken: Mapping[str, Plugin]) -> tuple[str, str] | None:
    """Return the first error in a custom plugin and a likely correction, or None."""
    if plugin is None:
        return f"defines no {SYMBOL}; {_ACCEPTED}", ""
    if not isinstance(plugin, Plugin):
        return f"{SYMBOL} is of type {type(plugin).__name__}; {_ACCEPTED}", ""
    built_in = (*taken, *ALIASES, *JOB_PLUGINS)
    return next(_find_mistakes(plugin, taken, built_in), None)


def _find_action_mistake(action: object, taken: Mapping[str, Action]) -> tuple[str, str] | None:
    """Return the first error in a custom action and a likely correction, or None."""
    if not isinstance(action, Action):
        return f"{ACTION_SYMBOL} is of type {type(action).__name__}; {_ACCEPTED_ACTION}", ""
    return next(_find_mistakes(action, taken, taken), None)


def _find_mistakes(
    plugin: Any,  # noqa: ANN401  set by users
    taken: Mapping[str, Plugin] | Mapping[str, Action],
    built_in: Collection[str],
) -> Iterator[tuple[str, str]]:
    """Yield the errors in a custom plugin or action, each with a likely correction.

    `taken` contains the loaded plugins or actions, keyed by name. A custom plugin or action must
    not have a name in `built_in`.
    """
    is_action = isinstance(plugin, Action)
    kind, made = ("an action", "a function that proposes") if is_action else ("a plugin", "rules")
    if not isinstance(plugin.name, str) or not _NAME.fullmatch(plugin.name):
        likely = re.sub(r"[^a-z0-9]+", "-", str(plugin.name).lower()).strip("-")
        accepted = "write lower-case words with hyphens between them"
        yield f"{kind} cannot be called {plugin.name!r}; {accepted}", likely
    if not isinstance(plugin.meaning, str) or not plugin.meaning.strip():
        yield f"{kind} needs a meaning: its purpose in a few words", ""
    if not callable(plugin.build):
        yield f"build must be a function from arguments to {made}", ""
    name = plugin.name
    if name in taken and taken[name].origin:
        yield f"the name {name} is taken by {taken[name].origin}", ""
    elif name in built_in:
        owner = "a built-in action" if is_action else "a built-in plugin"
        yield f"the name {name} is taken by {owner}", f"my-{name}"
    names = [a.name for a in plugin.arguments if isinstance(a, Argument)]
    if len(names) < len(plugin.arguments):
        yield "every argument must be an Argument", ""
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield f"the argument {name} is declared twice", ""


def find_rule_names(
    plugin: Plugin, arguments: Mapping[str, Value], taken: Mapping[str, str]
) -> tuple[str, ...] | str:
    """Return the names of a custom plugin's rules, or an error message if a rule is invalid.

    `taken` maps the rule names of the policy's other custom plugins to their plugin names.
    """
    try:
        rules = plugin.build(arguments)
    except HARMFUL as e:
        return f"does not accept these arguments: {_describe_error(e)}"
    for rule in rules:
        if wrong := _find_rule_mistake(rule):
            return wrong
    names = tuple(rule.name for rule in rules)
    for name in names:
        if name in taken:
            return f"the rule name {name} is taken by plugin {taken[name]}"
        if names.count(name) > 1:
            return f"two of its rules are called {name}"
    return names


def _find_rule_mistake(rule: object) -> str:
    if not isinstance(rule, Rule):
        return f"build returned {type(rule).__name__}, not Rules"
    kind, name = type(rule).__name__, getattr(rule, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return f"{kind} needs a name of lower-case words with hyphens between them"
    # The names of all built-in rules, including rules that are disabled by default.
    every: dict[str, Value] = {Switch.HIERARCHY.value: True, "proportional.enable": True}
    settings: tuple[dict[str, Value], ...] = ({}, every)
    built_in = [rule for p in PLUGINS.values() for given in settings for rule in p.build(given)]
    if name in {r.name for r in (*built_in, *RuleSet.of().hard)}:
        return f"the rule name {name} is taken by a built-in rule"
    overridden = [n for n in BUILT_IN_POINTS if hasattr(rule, n)]
    overridden += ["levels"] if type(rule).levels is not Rule.levels else []
    if overridden:
        return f"{kind} overrides {overridden[0]}, which a custom plugin must not override"
    return ""


# --- problems ------------------------------------------------------------------------------------


def _line_diagnostic(path: str, text: str, line: int, message: str, likely: str = "") -> Diagnostic:
    lines = text.splitlines()
    excerpt = lines[line - 1] if 0 < line <= len(lines) else ""
    return Diagnostic(path, line, 1 if line else 0, "", message, likely, excerpt=excerpt)


def _drop_duplicates(
    entries: Sequence[EntryPoint], found: Mapping[str, Plugin] | Mapping[str, Action], group: str
) -> tuple[dict[str, EntryPoint], tuple[Diagnostic, ...]]:
    """Return the entry points whose names are not in `found`, and a warning per duplicate name."""
    kept: dict[str, EntryPoint] = {}
    warnings: list[Diagnostic] = []
    for entry in entries:
        if entry.name not in found:
            kept[entry.name] = entry
            continue
        by = found[entry.name]
        other = by.origin or f"{'a plugin' if isinstance(by, Plugin) else 'an action'} of optsched"
        message = f"entry point {entry.name} = {entry.value} is ignored: {other} has that name"
        warnings.append(Diagnostic(group, 0, 0, "", message, severity=Severity.WARNING))
    return kept, tuple(warnings)


def _find_line(text: str, symbol: str) -> int:
    """Return the line on which a file assigns the variable `symbol`, or 0 if it never does."""
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(t, ast.Name) and t.id == symbol for t in targets):
            return node.lineno
    return 0


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
