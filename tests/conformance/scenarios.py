"""Read scenarios recorded from Volcano as snapshots and policies of optsched.

Objects keep their recorded fields, without the defaults of an API server. Three things are added
that the recording programs imply. Pods of a PodGroup get the scheduler name `volcano`. Objects
without a creation time get the same time. Measured load is set on the nodes of the snapshot. If a
scenario has shards, the snapshot has them too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from optsched.cluster.node_resources import NO_SHARDING, Shard, Sharding, ShardMode
from optsched.cluster.snapshot import Load
from optsched.formats.snapshots.assembly import assemble
from optsched.plugins.ruleset import RuleSet
from optsched.policy.load import parse_policy
from optsched.policy.policy import build_rules
from optsched.policy.policy_sections import derive_levels
from optsched.units import parse_time_ms
from tests.conformance.stand_ins import stand_ins
from tests.support.shared import found

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from optsched.cluster.snapshot import Snapshot
    from optsched.policy import Policy

GROUP = "scheduling.k8s.io/group-name"
EPOCH = "1970-01-01T00:00:00Z"


@dataclass(frozen=True, eq=False)
class Scenario:
    """One scenario file. Its `kind` is actions, cycles or probe."""

    id: str
    kind: str
    data: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Scenario:
        data = json.loads(path.read_text("utf-8"))
        return cls(data["id"], data["kind"], data)

    @property
    def package(self) -> str:
        """The Volcano package of the scenario without `pkg/scheduler/`, for example
        actions/preempt.
        """
        return self.data["source"]["package"].removeprefix("pkg/scheduler/")

    @property
    def expect(self) -> Mapping[str, Any]:
        return self.data["expect"]

    @property
    def variants(self) -> list[Mapping[str, Any]]:
        """The observed outcomes of a scenario with a random outcome, or an empty list."""
        return self.data["actual"].get("variants", [])

    @property
    def preconditions(self) -> Mapping[str, Any]:
        return self.data.get("preconditions", {})

    @property
    def taken_ms(self) -> int:
        return parse_time_ms(self.data["capturedAt"])

    @property
    def objects(self) -> list[dict[str, Any]]:
        """All manifests, in order of insertion within a kind."""
        return [obj for listed in self.data["objects"].values() for obj in listed]

    @property
    def actions(self) -> list[str]:
        return [name.strip() for name in self.data["schedulerConf"]["actions"].split(",")]

    def snapshot(self, objects: Iterable[dict[str, Any]] | None = None) -> Snapshot:
        """Return the snapshot of the scenario, or of other objects at the same time."""
        chosen = self.objects if objects is None else objects
        found = assemble(map(completed, chosen), taken_ms=self.taken_ms).snapshot
        found = replace(found, sharding=self._sharding())
        measured = self.preconditions.get("nodeUsage", {})
        nodes = (replace(n, load=self._load(measured.get(n.name))) for n in found.nodes)
        return replace(found, nodes=tuple(nodes)) if measured else found

    def _sharding(self) -> Sharding:
        """Return the scenario's shard as the only shard, or no sharding."""
        told = self.preconditions.get("sharding")
        if told is None:
            return NO_SHARDING
        own = Shard(told["shardName"], tuple(told["nodesInShard"]))
        return Sharding(ShardMode(told["mode"]), own.name, (own,))

    def _load(self, measured: Mapping[str, Any] | None) -> Load | None:
        """Return the measured load of a node, or None if it was never measured."""
        if measured is None or measured["metricsAgeSeconds"] is None:
            return None
        percents = (measured[f"{what}UsageAvg"]["10m"] for what in ("cpu", "mem"))
        age_ms = measured["metricsAgeSeconds"] * 1000
        return Load(*(round(p * 10_000) for p in percents), self.taken_ms - age_ms)

    def policy(self, **more: object) -> Policy:
        """Return the policy of the scenario's configuration, with the fields `more` set.

        Each plugin is parsed separately, because Volcano ran the scenario without checks of plugin
        combinations.
        """
        conf = self.data["schedulerConf"]
        # A probe runs no action, but the parser requires at least one.
        common = {**conf, "actions": conf["actions"] or "allocate", **more}
        tests = self.data.get("testOnlyPlugins", {})
        tiers = tuple(
            tuple(
                self._read(common, p).tiers[0][0] for p in tier["plugins"] if p["name"] not in tests
            )
            for tier in conf["tiers"]
        )
        first = self._read(common, conf["tiers"][0]["plugins"][0])
        rules = build_rules(tiers)
        joined = RuleSet((*rules.active, *stand_ins(tests)))
        return replace(first, tiers=tiers, rules=joined, levels=derive_levels(tiers))

    def _read(self, common: Mapping[str, object], plugin: Mapping[str, object]) -> Policy:
        text = json.dumps({**common, "tiers": [{"plugins": [plugin]}]})
        return parse_policy(text, f"{self.id}.conf")


def completed(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with the fields that the recording program implied."""
    meta = obj["metadata"]
    meta = {**meta, "creationTimestamp": meta.get("creationTimestamp") or EPOCH}
    result = {**obj, "metadata": meta}
    if obj["kind"] == "Pod" and GROUP in meta.get("annotations", {}):
        result["spec"] = {"schedulerName": "volcano", **obj["spec"]}
    return result


def scenarios() -> Iterator[Scenario]:
    """Return all scenarios in order of their names, or none if the material is missing."""
    return map(Scenario.read, found("conformance/*/*.json"))
