"""Model definitions as JSON, for results and for model comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched.plugins.extension_points import DEFAULT_SWITCHES, Switch
from optsched.plugins.objectives.levels import LEVELS
from optsched.units import format_duration_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.policy.policy import Policy


def definition(policy: Policy) -> dict[str, Any]:
    """Return a model definition as JSON; models with equal settings give equal JSON."""
    budgets = policy.budgets
    return {
        "name": policy.name,
        "meaning": policy.meaning,
        "actions": list(policy.actions),
        "tiers": [
            [
                {
                    "name": plugin.name,
                    "meaning": plugin.resolved.meaning,
                    "arguments": {name: str(value) for name, value in plugin.arguments},
                    "switched": [
                        f.value for f in Switch if (f in plugin.switches) != (f in DEFAULT_SWITCHES)
                    ],
                }
                for plugin in tier
            ]
            for tier in policy.tiers
        ],
        "levels": [{"name": name, "meaning": LEVELS[name].meaning} for name in policy.levels],
        "admission": policy.admission.value,
        "solver": policy.solver.value,
        "reservations": policy.reservations,
        "budgets": {
            "solve": format_duration_ms(budgets.solve_ms),
            "period": format_duration_ms(budgets.period_ms),
            "starvationAfter": format_duration_ms(budgets.starvation_after_ms),
            "deterministic": f"{budgets.deterministic_s:g}",
        },
    }


def flatten_definition(model: Mapping[str, Any]) -> dict[str, str]:
    """Flatten a model's JSON definition to key-value pairs, in the order of the definition."""
    found = {"actions": ", ".join(model["actions"])}
    for number, tier in enumerate(model["tiers"], 1):
        for plugin in tier:
            key = f"plugin {plugin['name']}"
            found[key] = f"tier {number}"
            found |= {f"{key}, {name}": value for name, value in plugin["arguments"].items()}
            found |= {f"{key}, {name}": "switched" for name in plugin["switched"]}
    found["levels"] = " > ".join(level["name"] for level in model["levels"])
    found |= {key: str(model[key]) for key in ("admission", "solver", "reservations")}
    return found | {f"budget {key}": value for key, value in model["budgets"].items()}
