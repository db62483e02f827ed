"""Read policies in two formats: scheduling models and Volcano's scheduler configuration.

The module `load` returns a `Policy` for a model name or a file, and detects changes to the file.
The readers record the position of each YAML value, and each error names its line.
All errors in a file are reported together. The package `policy` knows the names of rules and
levels, but imports no solver.
"""

from __future__ import annotations

from optsched.policy.diagnostic import Diagnostic, PolicyError, Severity
from optsched.policy.load import (
    PolicyWatch,
    Rejected,
    Reloaded,
    ShippedModel,
    Unchanged,
    load_policy,
    parse_policy,
    shipped_models,
)
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

__all__ = [
    "Admission",
    "Budgets",
    "Diagnostic",
    "Policy",
    "PolicyError",
    "PolicyWatch",
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
