"""Everything that a plugin is written with; these names do not change.

A plugin is a rule of your own: it keeps tasks off nodes, prefers nodes, orders queues and gangs, or
votes. A Python file in the folder of `--plugins-dir`, or an entry point of the group
`optsched.plugins`, defines it as `PLUGIN = Plugin(...)`, and a policy names it like any other. An
action of your own is `ACTION = Action(...)`, or an entry point of the group `optsched.actions`. See
docs/plugins.md for some that work, and `optsched.testing` for tests that any rule should pass.

Plugin, Argument, Kind, Value    what a configuration may name and tell it
Rule, Greedy, Face               what its rules are made of
Violation, Reason, ReasonCode    what they say
Action, View, Place, Displace    an action, what it sees, and what it proposes
World, Placement                 what a verifier sees: domain objects, before and after a plan
Problem, Outcome, Ledger         what engines see: arrays over task classes and nodes
Snapshot, Node, Gang, Queue, Task, TaskShape    the domain objects
Bool, I64, F64                   types of arrays
"""

from __future__ import annotations

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import Gang, Node, Queue, Snapshot
from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.plugins.custom.proposals import Action, Displace, Place, View
from optsched.plugins.declaration import Argument, Kind, Plugin, Value
from optsched.plugins.extension_points import (
    Greedy,
    KeyReach,
    LiveScorer,
    NodeModel,
    Rule,
    Scorer,
    Violation,
)
from optsched.plugins.faces import Face
from optsched.plugins.ledger import Ledger
from optsched.plugins.outcome import Outcome
from optsched.plugins.verification.world import Placement, World
from optsched.problem.arrays import F64, I64, Bool
from optsched.problem.formulation import Formulation
from optsched.problem.linear import Expression
from optsched.problem.problem import Problem
from optsched.problem.running import running_tasks

__all__ = [
    "F64",
    "I64",
    "Action",
    "Argument",
    "Bool",
    "Displace",
    "Expression",
    "Face",
    "Formulation",
    "Gang",
    "Greedy",
    "KeyReach",
    "Kind",
    "Ledger",
    "LiveScorer",
    "Node",
    "NodeModel",
    "Outcome",
    "Place",
    "Placement",
    "Plugin",
    "Problem",
    "Queue",
    "Reason",
    "ReasonCode",
    "Rule",
    "Scorer",
    "Snapshot",
    "Task",
    "TaskShape",
    "TaskStatus",
    "Value",
    "View",
    "Violation",
    "World",
    "running_tasks",
]
