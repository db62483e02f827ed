"""The parts of a rule: a name, arguments, and the faces that the verifier and the engines call."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from enum import IntEnum
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NamedTuple,
    Protocol,
    TypeAlias,
)

import numpy as np

from optsched.problem.formulation import GangNodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from typing_extensions import TypeIs

    from optsched.cluster.decisions import Sense
    from optsched.cluster.reasons import Reason
    from optsched.plugins.faces import Face
    from optsched.plugins.ledger import Ledger
    from optsched.plugins.outcome import Outcome
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.linear import Expression, LinearModel
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers


@dataclass(frozen=True, slots=True)
class Violation:
    """One hard rule that a plan breaks.

    Attributes
    ----------
    where, detail
        The object as "kind name", and the numbers.
    gang
        Key of the gang whose decisions break it, if known.

    """

    rule: str
    where: str
    detail: str
    gang: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: {self.detail}"


class Room(NamedTuple):
    """Tasks of a class that a gang asks for at once, and (N,) how many each node has room for."""

    task_class: int
    number: int
    counts: I64


class Blocker(NamedTuple):
    """Running tasks (see `problem.running`), any of which keeps a class out of its whole domain.

    Attributes
    ----------
    domain_of
        (N,) domain of each node, -1 where it is in none.

    """

    tasks: I64
    domain_of: I64


class EvictionGroups(NamedTuple):
    """Running tasks that a model may evict, in groups of one task class and node.

    Attributes
    ----------
    tasks, group_of
        (V',) on the axis of `problem.running`, and the group of each.
    node
        (K,) where a group stands.
    leave, number
        (K,) the variable that counts how many of a group leave, and how many they are.

    """

    tasks: I64
    group_of: I64
    node: I64
    leave: I64
    number: I64

    def groups(self, tasks: I64) -> I64:
        """Groups of which some running tasks are."""
        found: I64 = np.unique(self.group_of[np.isin(self.tasks, tasks)])
        return found

    def by_group(self) -> I64:
        """(K,) one running task of each group."""
        first = np.zeros(len(self.node), np.int64)
        first[self.group_of] = self.tasks
        return first


_NONE = np.empty(0, np.int64)
NO_EVICTIONS = EvictionGroups(_NONE, _NONE, _NONE, _NONE, _NONE)


@dataclass(frozen=True, slots=True)
class NodeModel:
    """The model node by node, to which rules add rows.

    Attributes
    ----------
    problem
        The problem, in which running tasks that may be evicted still hold their resources.
    gang_alone
        The problem in which no task that may be evicted counts. The same unless victims are chosen.
    model
        Variables and rows so far.
    supplied
        (C, N) variable for the tasks of a class on a node, -1 where none may be.
    evictions
        The running tasks that the model may evict; the rows hold once the victims have left.
    form
        The aggregated model of the session; None where victims are chosen for one gang.

    """

    problem: Problem
    gang_alone: Problem
    model: LinearModel
    supplied: I64
    evictions: EvictionGroups = NO_EVICTIONS
    form: Formulation | None = None

    @classmethod
    def of(cls, form: Formulation, supplied: I64) -> NodeModel:
        """Return the node-by-node part of an aggregated model, without evictions."""
        return cls(form.problem, form.problem, form.model, supplied, form=form)

    def split_gangs(self, gangs: Bool) -> GangNodes:
        """Return variables for the tasks of some gangs (G,) on each node.

        The rule names these gangs in `distinguish_gangs`, and their classes in `ties_nodes`. There
        are none without `form`.
        """
        if self.form is None:
            raise ValueError("gangs are split by node in the model of a session alone")
        if self.form.gang_nodes is None:
            self.form.gang_nodes = GangNodes(self.form, self.supplied)
        self.form.gang_nodes.add(gangs)
        return self.form.gang_nodes


class Level(Protocol):
    """One level of the objective: an integer to be made large or small."""

    @property
    def name(self) -> str:
        """Its name in models and certificates."""

    @property
    def unit(self) -> str:
        """The unit of its value."""

    @property
    def sense(self) -> Sense:
        """Whether more or less is better."""

    def value(self, outcome: Outcome) -> int:
        """The level reached, recomputed from the decisions alone."""

    def ideal(self, problem: Problem) -> int:
        """A value that nothing beats, known without solving."""


class GangLevel(Level, Protocol):
    """A level over gangs and their tasks, on any nodes."""

    def encode(self, form: Formulation) -> Expression:
        """The level as a linear form of the aggregated model, with rows where it needs any."""


class NodeLevel(Level, Protocol):
    """A level that sums a value over the nodes that tasks are put on."""

    def node_values(self, problem: Problem) -> I64:
        """(C, N) what one task of a class adds on a node."""


class DomainLevel(Level, Protocol):
    """A level over where in the network gangs and their parts go."""

    def encode_places(self, form: Formulation, supplied: I64) -> Expression:
        """The level as a linear form of the model node by node, with the choices it needs.

        `supplied` is (C, N) as in `NodeModel`. `Rule.constrain_nodes` has been called before.
        """


Scorer: TypeAlias = "Callable[[I64, I64], F64]"

LiveScorer: TypeAlias = "Callable[[Bool], F64]"

AnyLevel: TypeAlias = "GangLevel | NodeLevel | DomainLevel"


def is_node_level(level: AnyLevel) -> TypeIs[NodeLevel]:
    """Whether a level sums a value over nodes; far cheaper than `isinstance` of a protocol."""
    return hasattr(level, "node_values")


def is_domain_level(level: AnyLevel) -> TypeIs[DomainLevel]:
    """Whether a level is over domains of the network."""
    return hasattr(level, "encode_places")


class KeyReach(IntEnum):
    """Which queues' tasks change the key of a queue while gangs are placed."""

    OWN = 0
    GROWING = 1
    """Those of other queues as well, and the key only grows."""
    ANY = 2
    """Those of other queues as well."""


class Order:
    """Extension point: the order of queues and gangs. Smaller keys come first.

    Keys are compared plugin by plugin in the policy's order, as Volcano's `JobOrderFn` and
    `QueueOrderFn` are.
    """

    queue_key_reach: ClassVar[KeyReach] = KeyReach.OWN
    orders_by_class: ClassVar[bool] = False
    """Whether `gang_key` is equal for all gangs of a class that hold nothing.

    See `solver.greedy.gang_classes`. Keys that depend on age, name or estimates are not.
    """

    def queue_key(self, queue: int) -> tuple[float, ...]:
        """Return the key that orders queues."""
        raise NotImplementedError

    def gang_key(self, gang: int) -> tuple[float, ...]:
        """Return the key that orders the gangs of a queue."""
        raise NotImplementedError


class Quota:
    """Extension point: how much queues and gangs may still get."""

    def max_tasks(self, queue: int, task_class: int) -> int:
        """Return how many tasks of a class may still be allocated to a queue."""
        raise NotImplementedError

    def holds(self, gang: int) -> bool:
        """Whether the rule holds with the placed tasks of a gang."""
        raise NotImplementedError

    def enqueue_vote(self, gang: int) -> int:
        """Return the vote on enqueueing a gang: 1 permits, 0 abstains, -1 rejects."""
        raise NotImplementedError

    def record_enqueued(self, gang: int) -> None:
        """Record that a gang has been enqueued."""
        raise NotImplementedError


class Preemption:
    """Extension point: the victims that a gang may claim."""

    def preemptable(self, gang: int, task_class: int, victims: I64) -> I64 | None:
        """Return those of some running tasks, in order, that a gang may preempt.

        None abstains.
        """
        raise NotImplementedError

    def reclaimable(self, gang: int, task_class: int, victims: I64) -> I64 | None:
        """Return the same for a gang of another queue."""
        raise NotImplementedError


class NodeState:
    """Extension point: what nodes hold for the rule as tasks are placed and evicted.

    Attributes
    ----------
    fits_later
        Whether `fits` answers for nodes without terminating pods itself. A custom plugin without
        that in its `fits` is opened a second time on the problem without them.
    reads_labels
        Whether pod labels that are not part of task classes decide where a gang is placed.

    """

    fits_later: ClassVar[bool] = False
    reads_labels: ClassVar[bool] = False

    def fits(self, gang: int, task_class: int, *, later: bool) -> Bool | None:
        """(N,) nodes that one more task of a gang fits; None if no node is excluded.

        Parameters
        ----------
        gang
            -1 means nodes that the task fits in any gang.
        later
            Whether terminating pods have left: the victims of this session included.

        """
        raise NotImplementedError

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        """Record counts (m,) of tasks placed on nodes (m,); negative counts undo placements."""
        raise NotImplementedError

    def record_eviction(self, victim: int, sign: int) -> None:
        """Record the eviction of a running task (1) or its rollback (-1).

        victim: its index in `problem.running`.
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
    """A plugin in the greedy pipeline, opened for one problem. Does nothing by itself.

    The pipeline calls only the methods that a subclass defines. Further methods that it looks for
    are the protocols of `solver.greedy.plugins`.
    """

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        adopt_old_names(cls, _RENAMED_IN_GREEDY)
        if "fits" not in vars(cls) and any(name in vars(cls) for name in _OLD_MASKS):
            adopt_old_names(cls, dict.fromkeys(_OLD_MASKS, ("fits", lambda _: _combine_masks)))
            cls.fits_later = cls.fits_later or "later_mask" in vars(cls)


def _combine_masks(self: Any, gang: int, task_class: int, *, later: bool) -> Bool | None:  # noqa: ANN401
    """`NodeState.fits` of a class that defines `live_mask`, `later_mask` or `open_nodes`."""
    live_mask = getattr(self, "live_mask", None)
    find_nodes = getattr(self, "later_mask", live_mask) if later else live_mask
    nodes: Bool | None = find_nodes(task_class) if find_nodes else None
    find_open = getattr(self, "open_nodes", None)
    of_gang: Bool | None = find_open(gang, task_class) if find_open and gang >= 0 else None
    if nodes is None or of_gang is None:
        return of_gang if nodes is None else nodes
    return nodes & of_gang


def _adapt_encode_nodes(old: Callable[..., None]) -> Callable[..., None]:
    """Make `constrain_nodes` of an `encode_nodes(form, supplied)`."""

    def constrain_nodes(self: Rule, nodes: NodeModel) -> None:
        if nodes.form is not None:
            old(self, nodes.form, nodes.supplied)

    return constrain_nodes


_RENAMED: Renamed = {
    "encode_nodes": ("constrain_nodes", _adapt_encode_nodes),
    "tells_apart": ("distinguish_gangs", None),
}


class Filter:
    """Extension point: the nodes that a task class may use.

    Attributes
    ----------
    mask_lasts
        Whether the mask stays as it is while objects do; False where time or load change it.
    mask_sees_pods
        Whether the mask depends on the pods on nodes.
    pods_may_help
        Whether a pod may be allowed on a node only because of other pods there.

    """

    name: ClassVar[str]
    mask_lasts: ClassVar[bool] = True
    mask_sees_pods: ClassVar[bool] = False
    pods_may_help: ClassVar[bool] = False

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """(N,) nodes that a class may use regardless of other placements; None for all nodes."""
        return None

    def refusal(self, problem: Problem, task_class: int) -> str:
        """Return what excluded nodes lack, to follow their number: "did not match …"."""
        return f"did not pass {self.name}"


class Score:
    """Extension point: scores of nodes; larger is better."""

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """(N,) score of nodes regardless of other placements; None if all nodes score equally."""
        return None

    def scorer(self, problem: Problem, task_class: int) -> Scorer | None:
        """Return a function that scores nodes for one more task of a class; None without scores.

        It gets used and offered amounts on m nodes, (m, R) each, and returns (m,). Its scores of
        nodes where the task does not fit have no effect.
        """
        return None


class Constraint:
    """Extension point: rows of the model.

    Attributes
    ----------
    eviction_can_break
        Whether an eviction can break the rule for other tasks.
    ties_by_relations
        Whether `problem.relations` hold all that ties its classes to other tasks on nodes.

    """

    eviction_can_break: ClassVar[bool] = False
    ties_by_relations: ClassVar[bool] = False

    def encode(self, form: Formulation) -> None:
        """Add rows to the aggregated model."""

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """Whether placements of a class depend on other tasks of a node, beyond masks and capacity.

        Such classes are exact only node by node: see `constrain_nodes`.
        """
        return False

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """Add rows over single nodes, and over gangs on nodes (`NodeModel.split_gangs`).

        Rules that do not depend on victims leave a model without `form` alone.
        """

    def distinguish_gangs(self, problem: Problem) -> Bool | I64 | None:
        """(G,) gangs that the rule distinguishes; None where it distinguishes none.

        Booleans: gangs that the rows or levels of the rule must see one by one. Integers: gangs
        with different numbers are never one gang class.
        """
        return None


class Objective:
    """Extension point: levels of the objective."""

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[AnyLevel]:
        """Return the levels that the rule contributes, the most important first."""
        return ()


class Verify:
    """Extension point: the check of finished plans, from domain objects alone."""

    def verify(self, world: World) -> Iterable[Violation]:
        """Yield every place where the plan in `world` breaks the rule."""
        return ()

    def verify_evictions(self, world: World) -> Iterable[Violation]:
        """Yield every eviction of the plan in `world` that the rule forbids."""
        return ()

    def spares(self, problem: Problem) -> Bool | None:
        """(V,) running tasks that no gang may evict; None if there are none.

        See `problem.running` for the axis.
        """
        return None


class Explain:
    """Extension point: the reasons for which gangs wait."""

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """Return why the rule keeps a gang waiting; None if it does not."""
        return None


class Rule(Filter, Score, Constraint, Objective, Verify, Explain):
    """A hard rule, an order or a score; what a subclass does not override has no effect.

    Attributes
    ----------
    hard_face
        The switch that turns the hard part on: `verify`, rows, masks and quotas.

    """

    hard_face: ClassVar[Face | None] = None

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        adopt_old_names(cls, _RENAMED)

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """Return the plugin's side in the greedy pipeline; None if it has none in this problem.

        The pipeline keeps the ledger; the rule only reads it.
        """
        return None


# --- deprecated names ----------------------------------------------------------------------------


Renamed: TypeAlias = "Mapping[str, tuple[str, Callable[[Any], Any] | None]]"


def adopt_old_names(kind: type, renamed: Renamed) -> None:
    """Give a class the new names of the methods that it defines by old ones, with a warning.

    Parameters
    ----------
    kind
        The class that has just been defined.
    renamed
        By old name, the new one, and what makes the new method of the old one where its arguments
        have changed; None where they have not.

    """
    for old, (new, adapt) in renamed.items():
        if old not in vars(kind) or new in vars(kind):
            continue
        warnings.warn(
            f"{kind.__name__}.{old} is deprecated: name it {new}", DeprecationWarning, stacklevel=4
        )
        method = vars(kind)[old]
        setattr(kind, new, adapt(method) if adapt else method)
