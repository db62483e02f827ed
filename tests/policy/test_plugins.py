"""Every plugin of Volcano and each of its documented arguments is accepted, and none is ignored."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

import pytest

from optsched.plugins.declaration import Kind
from optsched.plugins.extension_points import Switch
from optsched.plugins.registry import PLUGINS
from optsched.policy.load import parse_policy

EXTENDER = (
    *("urlPrefix", "httpTimeout", "onSessionOpenVerb", "onSessionCloseVerb", "predicateVerb"),
    *("prioritizeVerb", "preemptableVerb", "reclaimableVerb", "queueOverusedVerb"),
    *("jobEnqueueableVerb", "jobEnqueuedVerb", "jobReadyVerb", "allocateFuncVerb"),
    *("deallocateFuncVerb", "ignorable", "managedResources"),
)
DOCUMENTED = {
    "gang": (),
    "priority": (),
    "conformance": (),
    "drf": (),
    "proportion": (),
    "capacity": (
        "ancestorReclaimLevel",
        "capacity.DynamicResourceAllocationEnable",
        "capacity.DRAConsumableCapacityEnable",
    ),
    "predicates": (
        *(
            f"predicate.{name}Enable"
            for name in (
                *("NodeAffinity", "NodePorts", "TaintToleration", "PodAffinity"),
                *("NodeVolumeLimits", "VolumeZone", "PodTopologySpread", "VolumeBinding"),
                *("DynamicResourceAllocation", "Cache"),
            )
        ),
        "volumebinding.weight",
        "volumebinding.bindTimeoutSeconds",
        "volumebinding.shape.0.utilization",
        "volumebinding.shape.0.score",
        "dynamicresources.filterTimeoutSeconds",
    ),
    "nodeorder": (
        "leastrequested.weight",
        "mostrequested.weight",
        "nodeaffinity.weight",
        "podaffinity.weight",
        "balancedresource.weight",
        "tainttoleration.weight",
        "imagelocality.weight",
        "podtopologyspread.weight",
    ),
    "binpack": (
        "binpack.weight",
        "binpack.cpu",
        "binpack.memory",
        "binpack.resources",
        "binpack.resources.*",
    ),
    "overcommit": ("overcommit-factor",),
    "sla": ("sla-waiting-time",),
    "tdm": ("tdm.revocable-zone.*", "tdm.evict.period"),
    "cdp": (),
    "pdb": (),
    "nodegroup": ("strict", "enablePreferredOrder"),
    "resourcequota": (),
    "usage": (
        "usage.weight",
        "cpu.weight",
        "memory.weight",
        "thresholds.cpu",
        "thresholds.mem",
        "estimator.request_ratio",
        "estimator.burst_ratio",
        "estimator.risk_threshold",
        "estimator.risk_factor",
        "estimator.best_effort.cpu",
        "estimator.best_effort.mem",
    ),
    "rescheduling": (
        "interval",
        "metricsPeriod",
        "strategies.0.name",
        *(f"strategies.0.params.thresholds.{r}" for r in ("cpu", "memory", "pods")),
        *(f"strategies.0.params.targetThresholds.{r}" for r in ("cpu", "memory", "pods")),
        "strategies.0.params.thresholdPriorityClassName",
        "strategies.0.params.nodeFit",
    ),
    "resource-strategy-fit": (
        "resourceStrategyFitWeight",
        "resources.*.type",
        "resources.*.weight",
        "sra.enable",
        "sra.resources",
        "sra.weight",
        "sra.resourceWeight.*",
        "proportional.enable",
        "proportional.resources",
        "proportional.resourceProportion.*",
    ),
    "task-topology": ("task-topology.weight",),
    "numa-aware": ("weight",),
    "deviceshare": (
        *(
            f"deviceshare.{name}"
            for name in (
                *("GPUSharingEnable", "GPUNumberEnable", "VGPUEnable", "NodeLockEnable"),
                *("AscendMindClusterVNPUEnable", "AscendHAMiVNPUEnable", "SchedulePolicy"),
                *("ScheduleWeight", "KnownGeometriesCMName", "KnownGeometriesCMNamespace"),
                "GPUExclusiveRules.0.*",
            )
        ),
    ),
    "network-topology-aware": (
        "weight",
        "hypernode.binpack.cpu",
        "hypernode.binpack.memory",
        "hypernode.binpack.resources",
        "hypernode.binpack.resources.*",
        "hypernode.binpack.normal-pod.enable",
        "hypernode.binpack.normal-pod.fading",
        "hypernode.gradient.evict.max-hypernodes",
    ),
    "extender": tuple(f"extender.{name}" for name in EXTENDER),
}
"""Volcano's documentation and sources: `pkg/scheduler/plugins/*`, `docs/user-guide`."""


def flat(arguments, prefix=""):
    """Yield the arguments that hold a value; those in mappings have dotted names."""
    for argument in arguments:
        if argument.fields:
            number = "0." if argument.kind is Kind.LIST else ""
            yield from flat(argument.fields, f"{prefix}{argument.name}.{number}")
        else:
            yield replace(argument, name=f"{prefix}{argument.name}")


def known(plugin):
    return list(flat(PLUGINS[plugin].arguments))


@pytest.mark.parametrize("plugin", DOCUMENTED)
def test_it_is_a_plugin_of_that_name(plugin) -> None:
    rest = "\n    arguments: {extender.urlPrefix: http://a, extender.predicateVerb: p}"
    text = f"actions: allocate\ntiers:\n- plugins:\n  - name: {plugin}"
    policy = parse_policy(text + rest * (plugin == "extender"), "a.conf")
    assert policy.warnings == ()
    assert [a.plugin for a in policy.rules.active][:1] == [plugin]


CASES = [(plugin, name) for plugin, names in DOCUMENTED.items() for name in names]


@pytest.mark.parametrize(("plugin", "name"), CASES, ids=[f"{p}:{n}" for p, n in CASES])
def test_it_has_the_arguments_that_are_documented(plugin, name) -> None:
    plain = name.replace("*", "example.com/x") if name.endswith("*") else name
    assert any(a.accepts(plain) or a.name == name for a in known(plugin)), name


# --- none is ignored -----------------------------------------------------------------------------

OTHER = {
    Kind.SWITCH: lambda a: not a.default,
    Kind.WHOLE: lambda a: int(a.default) + 3,
    Kind.NUMBER: lambda a: float(a.default) + 3,
    Kind.DURATION: lambda _: "17s",
    Kind.HOURS: lambda _: "1:00-2:00",
    Kind.QUANTITY: lambda _: "777Mi",
    Kind.NAMES: lambda _: "example.com/x",
    Kind.TEXT: lambda _: "elsewhere",
    Kind.URL: lambda _: "http://elsewhere",
    Kind.CHOICE: lambda a: next(c for c in a.choices if c != a.default),
}
"""A value that is not the default, by kind."""

BESIDES = {
    "volumebinding.weight": {"volumebinding.shape.0.score": 10},
    "binpack.resources.*": {"binpack.resources": "example.com/x"},
    "hypernode.binpack.resources.*": {"hypernode.binpack.resources": "example.com/x"},
    "sra.resources": {"sra.enable": True},
    "sra.weight": {"sra.enable": True, "sra.resources": "example.com/x"},
    "sra.resourceWeight.*": {"sra.enable": True, "sra.resources": "example.com/x"},
    "proportional.enable": {"proportional.resources": "example.com/x"},
    "proportional.resources": {"proportional.enable": True},
    "proportional.resourceProportion.*": {
        "proportional.enable": True,
        "proportional.resources": "example.com/x",
    },
}
"""What has to be said for an argument to matter."""

NAMED = {"proportional.resourceProportion.*": "proportional.resourceProportion.example.com/x.cpu"}

EFFECTIVE = [
    (plugin.name, argument)
    for plugin in PLUGINS.values()
    for argument in flat(plugin.arguments)
    if not argument.meaning.startswith(("has no effect", "not supported"))
]


def told(value) -> object:
    """Return the contents of a rule in a comparable form."""
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value), [told(getattr(value, f.name)) for f in fields(value) if f.init])
    if isinstance(value, tuple | list):
        return [told(each) for each in value]
    if isinstance(value, dict):
        return sorted((k, repr(told(v))) for k, v in value.items())
    if hasattr(value, "__dict__") and not callable(value):
        return (type(value), told(vars(value)))
    return value if not hasattr(value, "__slots__") else repr(value)


def built(plugin, arguments):
    return repr(told(PLUGINS[plugin].build({Switch.HIERARCHY.value: False, **arguments})))


@pytest.mark.parametrize(
    ("plugin", "argument"), EFFECTIVE, ids=[f"{p}:{a.name}" for p, a in EFFECTIVE]
)
def test_an_argument_makes_a_difference(plugin, argument) -> None:
    besides = BESIDES.get(argument.name, {})
    name = NAMED.get(argument.name, argument.name.replace("*", "example.com/x"))
    given = {**besides, name: OTHER[argument.kind](argument)}
    assert built(plugin, besides) == built(plugin, besides)
    assert built(plugin, given) != built(plugin, besides)
