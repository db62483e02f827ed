"""Isolates custom plugins: an exception in one plugin does not affect other plugins.

The module also checks the values that custom plugins return. A failed call is recorded as a `Fault`
and returns a safe default: a failed score or order has no effect, and a failed hard rule rejects
placements. See docs/plugins.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from optsched.cluster.decisions import Evict, placed_gangs
from optsched.plugins.extension_points import Greedy, Rule, Violation
from optsched.plugins.verification.world import World
from optsched.problem.running import running_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from optsched.cluster.reasons import Reason
    from optsched.plugins.accounting import Ledger, Outcome
    from optsched.plugins.extension_points import LiveScorer, NodeModel, Room, Scorer
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem

Returned = TypeVar("Returned")

OWN_POINTS = frozenset(
    {
        "verify",
        "verify_evictions",
        "spares",
        "mask",
        "refusal",
        "excludes",
        "distinguish_gangs",
        "ties_nodes",
        "encode",
        "constrain_nodes",
        "class_score",
        "scorer",
        "open",
        "explain",
        "explain_refusal",
        "explain_rooms",
    }
)
"""The extension points that custom plugins may implement; other `Rule` methods are for built-in
plugins."""

BUILT_IN_POINTS = ("blockers", "deserved", "deserved_by_name", "relevant_tasks")
"""Methods that, like `Rule.levels`, the solvers call only on built-in plugins."""

HARMFUL = (Exception, SystemExit)
"""The exception types that the wrappers around custom code catch."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An error in an extension point of a custom plugin, or in a custom action.

    Attributes
    ----------
    plugin, rule, point
        Names of the plugin, the rule of the plugin and the extension point. For a custom action,
        `plugin` is the name of the action and `rule` is empty.
    error
        Type name and message of the exception.
    where
        `file:line` of the innermost frame of the exception.

    """

    plugin: str
    rule: str
    point: str
    error: str
    where: str

    def __str__(self) -> str:
        if not self.rule:
            at = f" failed at {self.where}" if self.where else ""
            return f"action {self.plugin}{at}: {self.error}"
        at = f" at {self.where}" if self.where else ""
        return f"plugin {self.plugin}: {self.point} of rule {self.rule} failed{at}: {self.error}"


def build_fault(plugin: str, rule: str, point: str, error: BaseException) -> Fault:
    """Return the fault of custom code that raised an exception or returned an invalid value.

    `where` is empty if this module rejected the returned value.
    """
    frames = extract_tb(error.__traceback__)
    is_raised = bool(frames) and frames[-1].filename != __file__
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if is_raised else ""
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    return Fault(plugin, rule, point, text, where)


class PluginFailure(Exception):
    """Raised if a plugin fails to add its constraints; the incomplete model must not be solved."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__(str(fault))


@dataclass(eq=False)
class Faults:
    """The distinct faults of one session, in order of occurrence."""

    _found: dict[Fault, None] = field(default_factory=dict, init=False)

    def add(self, fault: Fault) -> None:
        """Record a fault; a fault that is already recorded is ignored."""
        self._found[fault] = None

    @property
    def recorded(self) -> tuple[Fault, ...]:
        """All recorded faults, in order of occurrence."""
        return tuple(self._found)


class IsolatedRule(Rule):
    """A wrapper that catches the errors of a custom plugin's rule."""

    def __init__(self, inner: Rule, plugin: str, faults: Faults) -> None:
        # Rule classes may override the following attributes, so the wrapper copies them.
        copied = ("name", "hard_switch", "mask_lasts", "mask_sees_pods", "pods_may_help")
        vars(self).update({attribute: getattr(inner, attribute) for attribute in copied})
        self.inner = inner
        self._plugin = plugin
        self._faults = faults
        self._failed_masks: set[tuple[int, int]] = set()

    def call_with_fallback(
        self, point: str, call: Callable[[], Returned], fallback: Callable[[], Returned]
    ) -> Returned:
        """Return the result of `call`, or the result of `fallback` if `call` raises."""
        try:
            return call()
        except HARMFUL as e:
            self.record_fault(point, e)
            return fallback()

    def record_fault(self, point: str, error: BaseException) -> Fault:
        """Record an exception that an extension point raised, and return the fault."""
        fault = build_fault(self._plugin, self.name, point, error)
        self._faults.add(fault)
        return fault

    def verify(self, world: World) -> Iterable[Violation]:
        """See `Rule`.

        If the inner rule fails, check each gang alone, and reject the gangs whose check fails
        again. If no single check fails, reject all gangs.
        """
        try:
            return _checked_violations(self.inner.verify(world))
        except HARMFUL as e:
            fault = self.record_fault("verify", e)
        gangs = sorted(placed_gangs(world.actions))
        guilty = []
        for gang in gangs:
            kept = [a for a in world.actions if isinstance(a, Evict) or a.gang == gang]
            try:
                _checked_violations(self.inner.verify(World(world.snapshot, kept)))
            except HARMFUL:
                guilty.append(gang)
        detail = f"could not be checked: {fault.error}"
        return [Violation(self.name, f"gang {gang}", detail) for gang in guilty or gangs]

    def verify_evictions(self, world: World) -> Iterable[Violation]:
        """See `Rule`. If the inner rule fails, reject all evictions."""
        try:
            return _checked_violations(self.inner.verify_evictions(world))
        except HARMFUL as e:
            error = self.record_fault("verify_evictions", e).error
        return [
            Violation(self.name, f"task {a.task}", f"could not be checked: {error}")
            for a in world.evictions
        ]

    def spares(self, problem: Problem) -> Bool | None:
        """See `Rule`. If the inner rule fails, protect all running tasks."""
        number = len(running_tasks(problem))
        return self.call_with_fallback(
            "spares",
            lambda: _flags(self.inner.spares(problem), number),
            lambda: np.ones(number, np.bool_),
        )

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`. If the inner rule fails, exclude all nodes."""
        try:
            return _flags(self.inner.mask(problem, task_class), problem.num_nodes)
        except HARMFUL as e:
            self.record_fault("mask", e)
            self._failed_masks.add((id(problem), task_class))
            return np.zeros(problem.num_nodes, np.bool_)

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`."""
        if (id(problem), task_class) in self._failed_masks:
            return f"could not be checked by plugin {self._plugin}, which failed"
        try:
            text: object = self.inner.refusal(problem, task_class)
            if not isinstance(text, str) or not text.strip():
                raise TypeError(f"expected a string that is not blank, not {_describe_value(text)}")
            return text
        except HARMFUL as e:
            self.record_fault("refusal", e)
            return Rule.refusal(self, problem, task_class)

    def excludes(self, problem: Problem) -> Bool | None:
        """See `GangExclusion`. If the inner rule fails, exclude all gangs."""
        number, excludes = problem.num_gangs, getattr(self.inner, "excludes", None)
        if excludes is None:
            return None
        return self.call_with_fallback(
            "excludes",
            lambda: _flags(excludes(problem), number),
            lambda: np.ones(number, np.bool_),
        )

    def distinguish_gangs(self, problem: Problem) -> Bool | None:
        """See `Rule`."""
        number = problem.num_gangs
        return self.call_with_fallback(
            "distinguish_gangs",
            lambda: _flags(self.inner.distinguish_gangs(problem), number),
            lambda: None,
        )

    def encode(self, form: Formulation) -> None:
        """See `Rule`. Raises `PluginFailure` if the inner rule fails."""
        try:
            self.inner.encode(form)
        except HARMFUL as e:
            raise PluginFailure(self.record_fault("encode", e)) from e

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """See `Rule`. Raises `PluginFailure` if the inner rule fails.

        In models with evictions, the inner rule adds no constraints; `verify` checks the plan after
        the solve.
        """
        if nodes.form is not None:
            try:
                self.inner.constrain_nodes(nodes)
            except HARMFUL as e:
                raise PluginFailure(self.record_fault("constrain_nodes", e)) from e

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """See `Rule`."""
        inner = self.inner
        return self.call_with_fallback(
            "ties_nodes", lambda: bool(inner.ties_nodes(problem, task_class)), lambda: False
        )

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """See `Rule`: returns None if the inner rule fails."""
        try:
            scores = self.inner.class_score(problem, task_class)
            return None if scores is None else _numbers(scores, problem.num_nodes)
        except HARMFUL as e:
            self.record_fault("class_score", e)
            return None

    def scorer(self, problem: Problem, task_class: int) -> Scorer | None:
        """See `Rule`: returns None if the inner rule fails."""
        score = self.call_with_fallback(
            "scorer", lambda: self.inner.scorer(problem, task_class), lambda: None
        )
        if score is None:
            return None
        # Custom code gets copies of the arrays, because it might modify them.
        return lambda used, offered: self.call_with_fallback(
            "scorer",
            lambda: _numbers(score(used.copy(), offered.copy()), len(used)),
            lambda: np.zeros(len(used)),
        )

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        opened = self.call_with_fallback(
            "open", lambda: self.inner.open(problem, ledger), lambda: None
        )
        if opened is None:
            return None
        isolated = _IsolatedGreedy(self, opened, problem.num_nodes)
        methods: dict[str, Any] = {
            "queue_key_reach": opened.queue_key_reach,
            "fits_later": opened.fits_later,
        }
        # The wrapper overrides exactly the methods that the inner object overrides.
        for name in (*_KEYS, *_CHECKS):
            if getattr(type(opened), name, None) is not getattr(Greedy, name, None):
                call = isolated.key if name in _KEYS else isolated.call_checked
                methods[name] = _forward_calls(call, name)
        wrapper: Greedy = type("ContainedGreedy", (Greedy,), methods)()
        return wrapper

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`."""
        return self._explain("explain", outcome, gang)

    def explain_refusal(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `EnqueueExplanation`."""
        return self._explain("explain_refusal", outcome, gang)

    def explain_rooms(self, outcome: Outcome, gang: int, rooms: Sequence[Room]) -> Reason | None:
        """See `CapacityExplanation`."""
        return self._explain("explain_rooms", outcome, gang, rooms)

    def _explain(self, point: str, *arguments: object) -> Reason | None:
        method = getattr(self.inner, point, None)
        if method is None:
            return None
        found: Reason | None = self.call_with_fallback(
            point, lambda: method(*arguments), lambda: None
        )
        return found


# --- checks --------------------------------------------------------------------------------------


def _checked_violations(found: Iterable[object]) -> list[Violation]:
    kept: list[Violation] = []
    for each in found:
        if not isinstance(each, Violation):
            raise TypeError(f"expected Violations, not {_describe_value(each)}")
        kept.append(each)
    return kept


def _flags(value: object, number: int) -> Bool | None:
    if value is None:
        return None
    if not isinstance(value, np.ndarray) or value.dtype != np.bool_ or value.shape != (number,):
        raise TypeError(f"expected None or {number} booleans, not {_describe_value(value)}")
    return value


def _numbers(value: object, number: int) -> F64:
    if not isinstance(value, np.ndarray) or value.shape != (number,):
        raise TypeError(f"expected {number} numbers, not {_describe_value(value)}")
    if value.dtype.kind not in "iuf":
        raise TypeError(f"expected numbers, not {_describe_value(value)}")
    if not np.isfinite(value).all():
        raise ValueError("expected finite numbers")
    return value.astype(np.float64)


def _describe_value(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {value.shape} of {value.dtype}"
    return type(value).__name__


def _vote(value: int) -> int:
    if value not in (-1, 0, 1):
        raise ValueError(f"expected 1, 0 or -1, not {value!r}")
    return int(value)


def _indices(value: object) -> I64 | None:
    if value is None:
        return None
    if not isinstance(value, np.ndarray):
        raise TypeError(f"expected None or an array of running tasks, not {_describe_value(value)}")
    return value


# --- the greedy extension points -----------------------------------------------------------------


@dataclass(eq=False)
class _IsolatedGreedy:
    """A wrapper that catches the errors of the `Greedy` object of a custom rule."""

    _rule: IsolatedRule
    _inner: Greedy
    num_nodes: int
    _widths: dict[str, int] = field(default_factory=dict, init=False)

    def key(self, point: str, *arguments: int) -> tuple[float, ...]:
        """Return a sort key; after the plugin has failed, all gangs and queues get equal keys."""
        if point not in self._widths or self._widths[point] >= 0:
            try:
                value = getattr(self._inner, point)(*arguments)
                if not isinstance(value, tuple):
                    raise TypeError(f"expected a tuple of numbers, not {_describe_value(value)}")
                found = tuple(float(part) for part in value)
                if not np.isfinite(found).all():
                    raise ValueError("expected finite numbers")
            except HARMFUL as e:
                self._rule.record_fault(point, e)
                self._widths[point] = ~self._widths.get(point, 0)
            else:
                self._widths[point] = len(found)
                return found
        return (0.0,) * ~self._widths[point]

    def call_checked(self, point: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        check, fallback = _CHECKS[point]
        return self._rule.call_with_fallback(
            point,
            lambda: check(self, getattr(self._inner, point)(*arguments, **options)),
            lambda: fallback(self, arguments),
        )

    def live_scorer(self, score: LiveScorer | None) -> LiveScorer | None:
        """Return a scorer that catches errors raised by `score`, or None if `score` is None."""
        if score is None:
            return None
        return lambda nodes: self._rule.call_with_fallback(
            "live_scorer",
            lambda: _numbers(score(nodes), self.num_nodes),
            lambda: np.zeros(self.num_nodes),
        )


_CHECKS: dict[
    str, tuple[Callable[[_IsolatedGreedy, Any], Any], Callable[[_IsolatedGreedy, Any], Any]]
] = {
    "is_overused": (lambda _, v: bool(v), lambda *_: False),
    "max_tasks": (lambda _, v: int(v), lambda *_: 0),
    "may_start": (lambda _, v: bool(v), lambda *_: False),
    "holds": (lambda _, v: bool(v), lambda *_: False),
    "enqueue_vote": (lambda _, v: _vote(v), lambda *_: 0),
    "record_enqueued": (lambda _, v: None, lambda *_: None),
    "fits": (lambda w, v: _flags(v, w.num_nodes), lambda w, _: np.zeros(w.num_nodes, np.bool_)),
    "record_eviction": (lambda _, v: None, lambda *_: None),
    "task_runs": (lambda _, v: v, lambda *_: None),
    "live_scorer": (lambda w, v: w.live_scorer(v), lambda *_: None),
    "record_placement": (lambda _, v: None, lambda *_: None),
    "record_tasks": (lambda _, v: None, lambda *_: None),
    "record_nomination": (lambda _, v: None, lambda *_: None),
    "is_starving": (lambda _, v: bool(v), lambda *_: False),
    "may_reclaim": (lambda _, v: bool(v), lambda *_: False),
    "preemptable": (lambda _, v: _indices(v), lambda _, arguments: arguments[2][:0]),
    "reclaimable": (lambda _, v: _indices(v), lambda _, arguments: arguments[2][:0]),
}
"""Maps each extension point to its result check and to its default result after a failure."""

_KEYS = ("queue_key", "gang_key", "victim_queue_key")


def _forward_calls(respond: Callable[..., Any], name: str) -> Callable[..., Any]:
    return lambda _, *arguments, **options: respond(name, *arguments, **options)
