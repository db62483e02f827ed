"""Policy files → policies: our own models, and Volcano's scheduler configuration.

`load` goes from a name or file to a `Policy`, `reload` notices that a file has changed. Both
formats are read from located YAML, so that every problem has its line, and all are reported at
once. This room knows the names of rules and levels, never a problem or an engine.
"""

from __future__ import annotations

from optsched.policy.diagnostic import PolicyError, Problem, Severity
from optsched.policy.load import ShippedModel, load_policy, parse_policy, shipped_models
from optsched.policy.policy import (
    Admission,
    Budgets,
    Policy,
    SolverKind,
    TierPlugin,
    describe,
    with_solver,
    without_solver,
)
from optsched.policy.reload import PolicyWatch, Rejected, Reloaded, Unchanged

__all__ = [
    "Admission",
    "Budgets",
    "Policy",
    "PolicyError",
    "PolicyWatch",
    "Problem",
    "Rejected",
    "Reloaded",
    "Severity",
    "ShippedModel",
    "SolverKind",
    "TierPlugin",
    "Unchanged",
    "describe",
    "load_policy",
    "parse_policy",
    "shipped_models",
    "with_solver",
    "without_solver",
]
