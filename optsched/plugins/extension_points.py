"""The extension points of rules, and the switches with which a policy enables them.

The verifier, the models and the greedy pipeline call the methods of the extension points.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np

from optsched.problem.formulation import GangNodes
from optsched.problem.running import running_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from typing_extensions import TypeIs

    from optsched.cluster.decisions import Sense
    from optsched.cluster.reasons import Reason
    from optsched.cluster.task import Task
    from optsched.plugins.accounting import Ledger, Outcome
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.linear import Expression, LinearModel
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers


class Switch(Enum):
    """A switch of a plugin; each value is the switch's key in Volcano's YAML configuration."""

    JOB_ORDER = "enableJobOrder"
    QUEUE_ORDER = "enableQueueOrder"
    TASK_ORDER = "enableTaskOrder"
    JOB_READY = "enableJobReady"
    JOB_PIPELINED = "enableJobPipelined"
    JOB_ENQUEUED = "enableJobEnqueued"
    JOB_STARVING = "enableJobStarving"
    PREDICATE = "enablePredicate"
    NODE_ORDER = "enableNodeOrder"
    BEST_NODE = "enableBestNode"
    ALLOCATABLE = "enabledAllocatable"
    OVERUSED = "enabledOverused"
    PREEMPTABLE = "enablePreemptable"
    PREEMPTIVE = "enablePreemptive"
    RECLAIMABLE = "enableReclaimable"
    VICTIM = "enabledVictim"
    CLUSTER_ORDER = "enabledClusterOrder"
    TARGET_JOB = "enableTargetJob"
    RESERVED_NODES = "enableReservedNodes"
    HIERARCHY = "enableHierarchy"
    HYPERNODE_ORDER = "enabledHyperNodeOrder"
    HYPERNODE_GRADIENT = "enabledHyperNodeGradient"
    SUB_JOB_READY = "enabledSubJobReady"
    SUB_JOB_PIPELINED = "enabledSubJobPipelined"
    SUB_JOB_ORDER = "enabledSubJobOrder"


DEFAULT_SWITCHES = frozenset(Switch) - {Switch.HIERARCHY, Switch.CLUSTER_ORDER}
"""The switches that are enabled by default, as in Volcano's `plugins/defaults.go`."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of a hard rule in a plan.

    Attributes
    ----------
    where
        Kind and name of the object that violates the rule, such as "task team/a-0".
    detail
        What is violated, with the compared numbers.
    gang
        Key of the gang whose decisions break the rule; empty if unknown.

    """

    rule: str
    where: str
    detail: str
    gang: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: {self.detail}"


class Room(NamedTuple):
    """The number of tasks of a class that a gang must place, and how many fit on each node (N,)."""

    task_class: int
    number: int
    counts: I64


class Blocker(NamedTuple):
    """Running tasks that exclude a task class from their topology domains.

    Attributes
    ----------
    tasks
        (m,) indices of the running tasks in `problem.running`.
    domain_of
        (N,) topology domain of each node; -1 for a node outside all domains.

    """

    tasks: I64
    domain_of: I64


class EvictionGroups(NamedTuple):
    """Running tasks that a model may evict, grouped by task class and node.

    Attributes
    ----------
    tasks, group_of
        (V',) indices of the tasks in `problem.running`, and (V',) the index of each task's group.
    node
        (K,) the node on which the tasks of each group run.
    leave
        (K,) the variable for the number of evicted tasks in each group.
    number
        (K,) the number of tasks in each group.

    """

    tasks: I64
    group_of: I64
    node: I64
    leave: I64
    number: I64

    def groups(self, tasks: I64) -> I64:
        """Return the groups that contain at least one of the given running tasks."""
        found: I64 = np.unique(self.group_of[np.isin(self.tasks, tasks)])
        return found

    def by_group(self) -> I64:
        """Return, for each group, the index (K,) in `problem.running` of one of its tasks."""
        first = np.zeros(len(self.node), np.int64)
        first[self.group_of] = self.tasks
        return first


_NONE = np.empty(0, np.int64)
NO_EVICTIONS = EvictionGroups(_NONE, _NONE, _NONE, _NONE, _NONE)


@dataclass(frozen=True, slots=True)
class NodeModel:
    """A model with one variable per task class and node, to which rules add constraints.

    Attributes
    ----------
    problem
        The problem before evictions. Running tasks that may be evicted still use resources.
    gang_alone
        The problem after the eviction of all tasks that may be evicted. `gang_alone` equals
        `problem` if the model chooses no victims.
    model
        The linear model with the variables and constraints added so far.
    supplied
        (C, N) variable that counts the tasks of a class on a node; -1 if the class may not use the
        node.
    evictions
        The running tasks that the model may evict. All constraints describe the state after the
        evictions.
    form
        The aggregated model of the session, or None in a model that chooses victims for one gang.

    """

    problem: Problem
    gang_alone: Problem
    model: LinearModel
    supplied: I64
    evictions: EvictionGroups = NO_EVICTIONS
    form: Formulation | None = None

    @classmethod
    def of(cls, form: Formulation, supplied: I64) -> NodeModel:
        """Return the node model of `form` with node variables `supplied` and without evictions."""
        return cls(form.problem, form.problem, form.model, supplied, form=form)

    def victims_by_node(self) -> dict[int, list[tuple[int, int, Task]]]:
        """Return (variable, number of tasks, one task) for each group of `evictions`, by node."""
        tasks = running_tasks(self.problem).tasks if len(self.evictions.node) else ()
        found: dict[int, list[tuple[int, int, Task]]] = {}
        columns = (self.evictions.leave, self.evictions.number, self.evictions.by_group())
        groups = zip(*(column.tolist() for column in columns), strict=True)
        for node, (leave, number, task) in zip(self.evictions.node.tolist(), groups, strict=True):
            found.setdefault(node, []).append((leave, number, tasks[task]))
        return found

    def split_gangs(self, gangs: Bool) -> GangNodes:
        """Return variables that count the selected gangs' tasks on each node.

        `gangs` (G,) is the mask of selected gangs. The rule's method
        `distinguish_gangs` must return the selected gangs, and `ties_nodes` must return True for
        their task classes. Raises `ValueError` if `form` is None.
        """
        if self.form is None:
            raise ValueError("only the model of a session can split gangs by node")
        if self.form.gang_nodes is None:
            self.form.gang_nodes = GangNodes(self.form, self.supplied)
        self.form.gang_nodes.add(gangs)
        return self.form.gang_nodes


class Level(Protocol):
    """One level of the objective: an integer to maximise or minimise."""

    @property
    def name(self) -> str:
        """The name of the level in models and certificates."""

    @property
    def unit(self) -> str:
        """The unit of the level's value."""

    @property
    def sense(self) -> Sense:
        """The direction of optimisation: maximise or minimise."""

    def value(self, outcome: Outcome) -> int:
        """Return the value of the level for a plan, computed only from the plan's decisions."""

    def ideal(self, problem: Problem) -> int:
        """Return a bound on the value, computed without a solver; no plan has a better value."""


class GangLevel(Level, Protocol):
    """A level that depends on gangs and their tasks, but not on nodes."""

    def encode(self, form: Formulation) -> Expression:
        """Return the level as an expression of the aggregated model; may add constraints."""


class NodeLevel(Level, Protocol):
    """A level that is a sum over all placed tasks; a task's value depends on its node."""

    def node_values(self, problem: Problem) -> I64:
        """Return the value (C, N) that one task of a class contributes on a node."""


class DomainLevel(Level, Protocol):
    """A level that depends on the network domains in which gangs and subgroups are placed."""

    def encode_places(self, form: Formulation, supplied: I64) -> Expression:
        """Return the level as an expression of the node model; may add variables.

        `supplied` (C, N) has the same meaning as in `NodeModel`. The caller runs
        `Rule.constrain_nodes` before `encode_places`.
        """


Scorer: TypeAlias = "Callable[[I64, I64], F64]"

LiveScorer: TypeAlias = "Callable[[Bool], F64]"

AnyLevel: TypeAlias = "GangLevel | NodeLevel | DomainLevel"


def is_node_level(level: AnyLevel) -> TypeIs[NodeLevel]:
    """Return whether a level is a `NodeLevel`.

    The function checks an attribute, because `isinstance` with a protocol is far slower.
    """
    return hasattr(level, "node_values")


def is_domain_level(level: AnyLevel) -> TypeIs[DomainLevel]:
    """Return whether a level is a `DomainLevel`."""
    return hasattr(level, "encode_places")


class KeyReach(IntEnum):
    """The queues whose placements can change the sort key of a given queue."""

    OWN = 0
    """Only placements in a queue change the sort key of this queue."""
    GROWING = 1
    """Placements in other queues may raise the sort key of a queue but never lower it."""
    ANY = 2
    """Placements in other queues may raise or lower the sort key of a queue."""


class Order:
    """Extension point: the order of queues and of gangs; smaller sort keys come first.

    The sort keys of the plugins are compared in the order of the policy, as in Volcano's
    `JobOrderFn` and `QueueOrderFn`.
    """

    queue_key_reach: ClassVar[KeyReach] = KeyReach.OWN
    orders_by_class: ClassVar[bool] = False
    """True if, within a gang class, all gangs that use no resources have equal sort keys.

    `orders_by_class` is False for rules that sort gangs by age, name or estimated runtime. See
    `solver.greedy.gang_classes`.
    """

    def queue_key(self, queue: int) -> tuple[float, ...]:
        """Return the sort key of a queue."""
        raise NotImplementedError

    def gang_key(self, gang: int) -> tuple[float, ...]:
        """Return the sort key of a gang among the gangs of its queue."""
        raise NotImplementedError


class Quota:
    """Extension point: limits on the resources allocated to queues and gangs."""

    def max_tasks(self, queue: int, task_class: int) -> int:
        """Return how many more tasks of a class may be allocated to a queue."""
        raise NotImplementedError

    def holds(self, gang: int) -> bool:
        """Return whether the placed tasks of a gang satisfy the rule."""
        raise NotImplementedError

    def enqueue_vote(self, gang: int) -> int:
        """Return the rule's vote on enqueueing a gang: 1 permits, 0 abstains, -1 rejects."""
        raise NotImplementedError

    def record_enqueued(self, gang: int) -> None:
        """Record that a gang has been enqueued."""
        raise NotImplementedError


class Preemption:
    """Extension point: the victims that a gang may evict."""

    def preemptable(self, gang: int, task_class: int, victims: I64) -> I64 | None:
        """Return the victims that a gang may preempt, in eviction order, or None to abstain."""
        raise NotImplementedError

    def reclaimable(self, gang: int, task_class: int, victims: I64) -> I64 | None:
        """Return the victims that a gang may reclaim from other queues, in eviction order.

        Returns None to abstain.
        """
        raise NotImplementedError


class NodeState:
    """Extension point: the nodes on which one more task fits after all placements and evictions.

    Attributes
    ----------
    fits_later
        True if `fits` evaluates its argument `later`. If `fits_later` is False, the greedy pipeline
        calls `Rule.open` of a custom rule twice: with and without the terminating pods of the
        problem.
    reads_labels
        True if the rule reads pod labels that are not part of task classes.

    """

    fits_later: ClassVar[bool] = False
    reads_labels: ClassVar[bool] = False

    def fits(self, gang: int, task_class: int, *, later: bool) -> Bool | None:
        """Return the mask (N,) of nodes on which one more task of a gang fits; None for all nodes.

        Parameters
        ----------
        gang
            Index of the gang; with -1, restrictions that depend on the gang are ignored.
        later
            True to assume that terminating pods and the victims of this session have ended.

        """
        raise NotImplementedError

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        """Record the placement of `counts` (m,) tasks on `nodes` (m,); negative counts undo it."""
        raise NotImplementedError

    def record_eviction(self, victim: int, sign: int) -> None:
        """Record the eviction of a running task (`sign` 1), or undo it (`sign` -1).

        `victim` is the index of the task in `problem.running`.
        """
        raise NotImplementedError


_RENAMED_IN_GREEDY: Renamed = {
    "placed": ("record_placement", None),
    "filled": ("record_tasks", None),
    "promised": ("record_nomination", None),
    "leaves": ("record_eviction", None),
    "enqueued": ("record_enqueued", None),
    "room": ("max_tasks", None),
}

_OLD_MASKS = ("live_mask", "later_mask", "open_nodes")


class Greedy(Order, Quota, Preemption, NodeState):
    """The base class of plugins in the greedy pipeline; a rule creates one object for each problem.

    The greedy pipeline calls only the methods that a subclass defines. The protocols of
    `solver.greedy.plugins` declare further optional methods.
    """

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        adopt_old_names(cls, _RENAMED_IN_GREEDY)
        if "fits" not in vars(cls) and any(name in vars(cls) for name in _OLD_MASKS):
            adopt_old_names(cls, dict.fromkeys(_OLD_MASKS, ("fits", lambda _: _combine_masks)))
            cls.fits_later = cls.fits_later or "later_mask" in vars(cls)


def _combine_masks(self: Any, gang: int, task_class: int, *, later: bool) -> Bool | None:  # noqa: ANN401
    """Implements `NodeState.fits` with the deprecated mask methods of a plugin."""
    live_mask = getattr(self, "live_mask", None)
    find_nodes = getattr(self, "later_mask", live_mask) if later else live_mask
    nodes: Bool | None = find_nodes(task_class) if find_nodes else None
    find_open = getattr(self, "open_nodes", None)
    of_gang: Bool | None = find_open(gang, task_class) if find_open and gang >= 0 else None
    if nodes is None or of_gang is None:
        return of_gang if nodes is None else nodes
    return nodes & of_gang


def _adapt_encode_nodes(old: Callable[..., None]) -> Callable[..., None]:
    """Return a `constrain_nodes` method that calls a deprecated `encode_nodes(form, supplied)`."""

    def constrain_nodes(self: Rule, nodes: NodeModel) -> None:
        if nodes.form is not None:
            old(self, nodes.form, nodes.supplied)

    return constrain_nodes


_RENAMED: Renamed = {
    "encode_nodes": ("constrain_nodes", _adapt_encode_nodes),
    "hard_face": ("hard_switch", None),
    "tells_apart": ("distinguish_gangs", None),
}


class Filter:
    """Extension point: the nodes that a task class may use.

    Attributes
    ----------
    mask_lasts
        True if the mask depends only on cluster objects, not on time or load.
    mask_sees_pods
        True if the mask depends on the pods that run on the nodes.
    pods_may_help
        True if a rule may allow a pod on a node only because of other pods on the node.

    """

    name: ClassVar[str]
    mask_lasts: ClassVar[bool] = True
    mask_sees_pods: ClassVar[bool] = False
    pods_may_help: ClassVar[bool] = False

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """Return the mask (N,) of nodes that a task class may use, regardless of other placements.

        Returns None if the class may use all nodes.
        """
        return None

    def refusal(self, problem: Problem, task_class: int) -> str:
        """Return why nodes are filtered out, as a phrase that follows a node count in messages.

        For example, the phrase is "did not match …".
        """
        return f"did not pass {self.name}"


class Score:
    """Extension point: node scores; a larger score is better."""

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """Return node scores (N,) that do not depend on placements, or None if all are equal."""
        return None

    def scorer(self, problem: Problem, task_class: int) -> Scorer | None:
        """Return a function that scores nodes for one more task of a class.

        Returns None if the rule does not score nodes for the class. The function gets the used and
        the allocatable resources of m nodes, each (m, R), and returns scores (m,). Scores of nodes
        without capacity for the task have no effect.
        """
        return None


class Constraint:
    """Extension point: the constraints that a rule adds to the optimisation model.

    Attributes
    ----------
    eviction_can_break
        True if an eviction can cause other tasks to violate the rule.
    ties_by_relations
        True if `problem.relations` contains all dependencies of task classes on other tasks.

    """

    eviction_can_break: ClassVar[bool] = False
    ties_by_relations: ClassVar[bool] = False

    def encode(self, form: Formulation) -> None:
        """Add constraints to the aggregated model."""

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """Return whether the nodes that a task class may use depend on other tasks on the nodes.

        If the result is True, only `constrain_nodes` models the rule exactly for the class.
        """
        return False

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """Add constraints on the tasks of each node, also by gang (`NodeModel.split_gangs`).

        If the model has no `form`, only rules that depend on victims add constraints.
        """

    def distinguish_gangs(self, problem: Problem) -> Bool | I64 | None:
        """Return Booleans or integers (G,) that split gang classes, or None.

        In a Boolean array, True marks a gang that must form a gang class of its own. In an integer
        array, gangs with different integers are never in the same gang class.
        """
        return None


class Objective:
    """Extension point: levels of the objective."""

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[AnyLevel]:
        """Return the objective levels of the rule, most important first."""
        return ()


class Verify:
    """Extension point: the check of complete plans, which reads only cluster objects."""

    def verify(self, world: World) -> Iterable[Violation]:
        """Yield each violation of the rule that the placements in `world` cause."""
        return ()

    def verify_evictions(self, world: World) -> Iterable[Violation]:
        """Yield each violation of the rule that the evictions in `world` cause."""
        return ()

    def spares(self, problem: Problem) -> Bool | None:
        """Return the mask (V,) over `problem.running` of tasks that must not be evicted, or None.

        None means that the rule protects no task.
        """
        return None


class Explain:
    """Extension point: the reasons why gangs wait."""

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """Return why the rule keeps a gang waiting, or None if the rule does not block the gang."""
        return None


class Rule(Filter, Score, Constraint, Objective, Verify, Explain):
    """The base class of rules: hard rules, orders and scores.

    Methods that a subclass does not override have no effect.

    Attributes
    ----------
    hard_switch
        The switch that enables the hard constraints of the rule (`verify`, model constraints,
        masks, quotas), or None if they are always enabled.

    """

    hard_switch: ClassVar[Switch | None] = None

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        adopt_old_names(cls, _RENAMED)

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """Return the rule's `Greedy` object for a problem, or None if the problem needs none.

        The greedy pipeline updates the ledger; the rule only reads it.
        """
        return None


# --- deprecated names ----------------------------------------------------------------------------


Renamed: TypeAlias = "Mapping[str, tuple[str, Callable[[Any], Any] | None]]"


def adopt_old_names(kind: type, renamed: Renamed) -> None:
    """Give methods and attributes with deprecated names their current names, with a warning.

    Parameters
    ----------
    kind
        The class whose methods and attributes may have deprecated names.
    renamed
        Maps each deprecated name to the current name and to a function. The function adapts the
        old method to the current arguments; the function is None if the arguments did not change.

    """
    for old, (new, adapt) in renamed.items():
        if old not in vars(kind) or new in vars(kind):
            continue
        warnings.warn(
            f"{kind.__name__}.{old} is deprecated: use {new}", DeprecationWarning, stacklevel=4
        )
        method = vars(kind)[old]
        setattr(kind, new, adapt(method) if adapt else method)
