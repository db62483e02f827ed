"""The stable API for custom plugins and actions.

A custom plugin filters or scores nodes, orders queues and gangs, or implements other extension
points. Define it as `PLUGIN = Plugin(...)` in a Python file in the folder of `--plugins-dir`, or as
an entry point of the group `optsched.plugins`. Policies name custom plugins in the same way as
built-in plugins. Define a custom action as `ACTION = Action(...)` in a file of this folder, or as
an entry point of the group `optsched.actions`. The page docs/plugins.md has working examples. The
module `optsched.testing` has tests that every rule should pass.

Plugin, Argument, Kind, Value    declaration of a plugin and of its arguments
Rule, Greedy, Switch             rules and their extension points
Violation, Reason, ReasonCode    results of verify and explain
Action, View, Place, Displace    an action, its input and its proposals
World, Placement                 input of a verifier: domain objects, before and after a plan
Problem, Outcome, Ledger         input of engines: arrays over task classes and nodes
Snapshot, Node, Gang, Queue, Task, TaskShape    domain objects
Bool, I64, F64                   array types
"""

from __future__ import annotations

import warnings

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import Gang, Node, Queue, Snapshot
from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.plugins.accounting import Ledger, Outcome
from optsched.plugins.custom.proposals import Action, Displace, Place, View
from optsched.plugins.declaration import Argument, Kind, Plugin, Value
from optsched.plugins.extension_points import (
    Greedy,
    KeyReach,
    LiveScorer,
    NodeModel,
    Rule,
    Scorer,
    Switch,
    Violation,
)
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
    "Switch",
    "Task",
    "TaskShape",
    "TaskStatus",
    "Value",
    "View",
    "Violation",
    "World",
    "running_tasks",
]


def __getattr__(name: str) -> type[Switch]:
    if name != "Face":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = "optsched.plugin.Face is deprecated: use Switch"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return Switch
