"""What a rule is: a name, arguments, and the faces that the verifier and the engines ask."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import (
    TYPE_CHECKING,
    ClassVar,
    NamedTuple,
    Protocol,
    TypeAlias,
)

import numpy as np

from optsched.plugins.deprecated import Renamed, adopt_old_names
from optsched.problem.gang_nodes import GangNodes

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
        Key of the gang whose decisions break it, where the rule knows that.

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
        The problem, in which running tasks that may be evicted still hold what they hold.
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
        """What its value counts."""

    @property
    def sense(self) -> Sense:
        """Whether more or less is better."""

    def value(self, outcome: Outcome) -> int:
        """The level reached, recomputed from the decisions alone."""

    def ideal(self, problem: Problem) -> int:
        """A value that nothing beats, known without solving."""


class GangLevel(Level, Protocol):
    """A level over gangs and their tasks, wherever they are put."""

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
    """Whose tasks change the key of a queue while gangs are being placed."""

    OWN = 0
    GROWING = 1
    """Those of other queues as well, and the key only grows."""
    ANY = 2
    """Those of other queues as well."""


_RENAMED_IN_GREEDY: Renamed = {
    "placed": ("record_placement", None),
    "filled": ("record_tasks", None),
    "promised": ("record_nomination", None),
    "leaves": ("record_eviction", None),
    "enqueued": ("record_enqueued", None),
    "room": ("max_tasks", None),
}


class Greedy:
    """The face of a rule in the greedy pipeline, opened for one problem. Does nothing by itself.

    The pipeline asks only what a subclass overrides. Smaller keys come first, as in Volcano's
    `JobOrderFn` and `QueueOrderFn`; keys are compared rule by rule in the policy's order.
    """

    queue_key_reach: ClassVar[KeyReach] = KeyReach.OWN
    orders_by_class: ClassVar[bool] = False
    """Whether `gang_key` is equal for all gangs of a class that hold nothing.

    See `solver.greedy.gang_classes`. Keys that depend on age, name or estimates are not.
    """
    reads_labels: ClassVar[bool] = False
    """Whether pod labels that are not part of task classes decide where a gang is placed."""

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        adopt_old_names(cls, _RENAMED_IN_GREEDY)

    def queue_key(self, queue: int) -> tuple[float, ...]:
        """Order of queues."""
        raise NotImplementedError

    def gang_key(self, gang: int) -> tuple[float, ...]:
        """Order of gangs in a queue."""
        raise NotImplementedError

    def is_overused(self, queue: int) -> bool:
        """Whether a queue gets nothing more in this session."""
        raise NotImplementedError

    def max_tasks(self, queue: int, task_class: int) -> int:
        """How many tasks of a class may still be allocated to a queue."""
        raise NotImplementedError

    def may_start(self, gang: int) -> bool:
        """Whether it is worth trying to start a gang."""
        raise NotImplementedError

    def holds(self, gang: int) -> bool:
        """Whether the rule holds now that tasks of a gang have been placed."""
        raise NotImplementedError

    def enqueue_vote(self, gang: int) -> int:
        """Whether a gang may be enqueued: 1 permits, 0 abstains, -1 rejects."""
        raise NotImplementedError

    def record_enqueued(self, gang: int) -> None:
        """Take note that a gang has been enqueued."""
        raise NotImplementedError

    def live_mask(self, task_class: int) -> Bool | None:
        """(N,) nodes that a class may use as things stand; None when that excludes none."""
        raise NotImplementedError

    def open_nodes(self, gang: int, task_class: int) -> Bool | None:
        """(N,) nodes that one more task of a gang may use now; None when that excludes none.

        In addition to `live_mask`, for rules that look at the tasks of single gangs.
        """
        raise NotImplementedError

    def later_mask(self, task_class: int) -> Bool | None:
        """(N,) the same once everything that is leaving has left."""
        return self.live_mask(task_class)

    def record_eviction(self, victim: int, sign: int) -> None:
        """Take note that a running task is to leave (1), or stays after all (-1).

        victim: its number on the axis of `problem.running`.
        """
        raise NotImplementedError

    def task_runs(self, gang: int) -> Sequence[tuple[int, int]] | None:
        """The order of a gang's tasks as (entry, number), like `GangShape.sequence`.

        The numbers of an entry sum to its count. None where the rule has no say.
        """
        raise NotImplementedError

    def live_scorer(self, gang: int, entry: int) -> LiveScorer | None:
        """What scores nodes for an entry of a gang as things stand, besides `Rule.scorer`.

        It gets the nodes (N,) that have room and answers (N,) what to add. None where nothing is:
        entries with such a score are placed one by one.
        """
        raise NotImplementedError

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        """Take note of counts (m,) of tasks placed on nodes (m,); negative ones come back."""
        raise NotImplementedError

    def record_tasks(self, gang: int, entry: int, nodes: I64, counts: I64) -> None:
        """The same by entry of the gang."""
        raise NotImplementedError

    def is_starving(self, gang: int) -> bool:
        """Whether others may be evicted for a gang (Volcano `JobStarving`)."""
        raise NotImplementedError

    def may_reclaim(self, queue: int, task_class: int) -> bool:
        """Whether a queue may claim back room for a task (Volcano `Preemptive`)."""
        raise NotImplementedError

    def victim_queue_key(self, queue: int, claimer: int) -> tuple[float, ...]:
        """Order of queues that give back to another; before the reverse of their own order."""
        raise NotImplementedError

    def preemptable(self, gang: int, task_class: int, victims: I64) -> I64 | None:
        """Of running tasks in the order given, those that may go for a gang; None abstains."""
        raise NotImplementedError

    def reclaimable(self, gang: int, task_class: int, victims: I64) -> I64 | None:
        """The same for a gang of another queue."""
        raise NotImplementedError

    def record_nomination(self, task_class: int, nodes: I64, counts: I64) -> None:
        """Take note that tasks placed before get their room later: nobody may rely on them yet."""
        raise NotImplementedError


class VictimReach(Protocol):
    """A rule that knows which victims it may name, so that the pipeline does not try others."""

    def preempt_reach(self, gang: int) -> Bool | None:
        """(V,) running tasks that `preemptable` may name for a gang now, or more; None for all."""

    def reclaim_reach(self, gang: int) -> Bool | None:
        """(V,) the same for `reclaimable`."""


class GangPreemption(Protocol):
    """A rule that names other victims where the pipeline preempts for a whole gang."""

    def gang_preemptable(self, gang: int, task_class: int, victims: I64) -> I64 | None:
        """The same as `preemptable` for a whole gang."""

    def gang_reclaimable(self, gang: int, task_class: int, victims: I64) -> I64 | None:
        """The same as `reclaimable` for a whole gang."""


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


class Rule:
    """A hard rule or an order; faces that a rule does not have stay as they are here."""

    name: ClassVar[str]
    hard_face: ClassVar[Face | None] = None
    """The switch that turns the hard part on: verify, encode, masks and room."""
    eviction_can_break: ClassVar[bool] = False
    """Whether a task that leaves can break the rule for others, who want it where it is."""
    mask_lasts: ClassVar[bool] = True
    """Whether the mask stays as it is while objects do; False where time or load change it."""
    mask_sees_pods: ClassVar[bool] = False
    """Whether the mask is about the pods on nodes, so that it is another one without them."""
    pods_may_help: ClassVar[bool] = False
    """Whether a pod may be allowed on a node only because of other pods there."""
    ties_by_relations: ClassVar[bool] = False
    """Whether `problem.relations` hold all that ties its classes to what stands on nodes."""

    returns_by_use: ClassVar[bool] = False
    """Whether a pod may be reclaimed for any resource that it uses and its queue deserves.

    Else for those that the claim asks for.
    """

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        adopt_old_names(cls, _RENAMED)

    def verify(self, world: World) -> Iterable[Violation]:
        """Every place where the plan in `world` breaks the rule."""
        return ()

    def verify_evictions(self, world: World) -> Iterable[Violation]:
        """Every eviction of the plan in `world` that the rule forbids."""
        return ()

    def spares(self, problem: Problem) -> Bool | None:
        """(V,) running tasks that may not be evicted, whoever asks; None when there is none.

        See `problem.running` for the axis.
        """
        return None

    def deserved(self, problem: Problem) -> I64 | None:
        """(Q, R) what queues may claim back from others, 0 where nothing is due; None without."""
        return None

    def deserved_by_name(self, world: World) -> Mapping[str, Mapping[str, int]] | None:
        """The same from the domain objects alone, by queue and resource, for the verifier."""
        return None

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """The rule's face in the greedy pipeline; None when it has no say in this problem.

        The pipeline keeps the ledger; the rule only reads it.
        """
        return None

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """(N,) nodes that a class may use whatever else is placed; None when that is all."""
        return None

    def refusal(self, problem: Problem, task_class: int) -> str:
        """What a node that the mask excludes lacks, to follow its count: "did not match …"."""
        return f"did not pass {self.name}"

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """(N,) score of nodes, larger is better, whatever else is placed; None when constant."""
        return None

    def scorer(self, problem: Problem, task_class: int) -> Scorer | None:
        """Scores nodes for one more task of a class; None when the rule does not score.

        The scorer gets what is taken on m nodes and what they offer, (m, R) each, and answers (m,).
        What it answers for nodes without room does not matter.
        """
        return None

    def encode(self, form: Formulation) -> None:
        """Write the rule's rows into the aggregated model."""

    def excludes(self, problem: Problem) -> Bool | None:
        """(G,) gangs that get nothing whatever else happens; None when there are none."""
        return None

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """Whether the rule ties a class to what else stands on nodes, beyond masks and room.

        Such classes are exact only node by node: see `constrain_nodes`.
        """
        return False

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """Add rows over single nodes.

        Rules that do not look at victims leave a model without `form` alone.
        """

    def blockers(self, problem: Problem, task_class: int) -> Sequence[Blocker]:
        """Running tasks that exclude nodes from a class, as `mask` says, while they stand."""
        return ()

    def relevant_tasks(self, problem: Problem, task_class: int) -> I64 | None:
        """(V,) what running tasks have that matters to a class: alike numbers for alike ones.

        -1 for those that would help it in nothing by leaving; None where that is nobody.
        """
        return None

    def distinguish_gangs(self, problem: Problem) -> Bool | I64 | None:
        """(G,) gangs that the rule distinguishes; None where it distinguishes none.

        Booleans: gangs that the rows or levels of the rule must see one by one. Integers: gangs
        with different numbers are never one gang class.
        """
        return None

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[AnyLevel]:
        """The levels that the rule can contribute, in their order."""
        return ()

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """Why the rule keeps a gang waiting; None when it does not."""
        return None

    def explain_refusal(self, outcome: Outcome, gang: int) -> Reason | None:
        """Why the rule lets a gang not in to have its pods created; None when it does."""
        return None

    def explain_rooms(self, outcome: Outcome, gang: int, rooms: Sequence[Room]) -> Reason | None:
        """Why the rule keeps a gang waiting although nodes have room; None when it does not."""
        return None
