"""Save the state of a simulation as JSON, so that the simulation can be resumed exactly."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Final

from optsched.cluster.amounts import Usage
from optsched.cluster.dra_devices import DeviceGrant, DeviceId
from optsched.cluster.gpu_shares import GpuShare
from optsched.cluster.node_parts import NumaPart
from optsched.cluster.snapshot import GangPhase
from optsched.study.simulation.simulated_cluster import Held, Placement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.study.simulation.simulated_cluster import Job, SimulatedCluster

VERSION: Final = 3


def write_cluster(cluster: SimulatedCluster) -> dict[str, Any]:
    """Return the failed nodes, the gangs with placements, and the terminating pods as JSON."""
    terminating_pods: list[list[Any]] = []
    for each in cluster.terminating_pods:
        task, place = each.resident, each.place
        placement = Placement(place.node, task.shared_gpus, task.numa, devices=each.devices)
        held = Held(place.task, placement, task.started_ms, place.gpus, task.saved_ms)
        terminating_pods.append([each.number, each.leaves_ms, _encode_held(held)])
    return {
        "down": cluster.failed_nodes,
        "jobs": [_job(cluster, job) for _, job in sorted(cluster.jobs.items())],
        "ghosts": terminating_pods,
    }


def read_cluster(cluster: SimulatedCluster, state: Mapping[str, Any]) -> None:
    """Restore the output of `write_cluster` in a newly created cluster."""
    for name in state["down"]:
        cluster.set_node_ready(name, ready=False)
    for given in state["jobs"]:
        job = cluster.add(given["arrival"], cluster.arrival(given["arrival"]).at_ms)
        cluster.restore_places(job, map(_read_place, given["places"]))
        cluster.nominate(job, given["nominated"])
        cluster.set_phase(job, GangPhase(given["phase"]), given["waiting_since"])
        job.since_ms, job.kept_ms = given["since"], given["kept"]
        job.run, job.turn = given["run"], given["turn"]
    for number, leaves_ms, place in state["ghosts"]:
        cluster.add_terminating_pod(cluster.terminating_pod(number, _read_place(place), leaves_ms))


def write_usage(usage: Mapping[str, Usage]) -> dict[str, Any]:
    """Return the queues' past usage as JSON with exact numbers; `read_usage` is the inverse."""
    return {
        name: [used.at_ms, [list(pair) for pair in used.seconds]] for name, used in usage.items()
    }


def read_usage(state: Mapping[str, Any]) -> dict[str, Usage]:
    """Parse the output of `write_usage`."""
    return {
        name: Usage(tuple((resource, amount) for resource, amount in pairs), at_ms)
        for name, (at_ms, pairs) in state.items()
    }


def _job(cluster: SimulatedCluster, job: Job) -> dict[str, Any]:
    gang = job.gang
    return {
        "arrival": job.number,
        "phase": gang.phase.value,
        "waiting_since": gang.waiting_since_ms,
        "since": job.since_ms,
        "kept": job.kept_ms,
        "run": job.run,
        "turn": job.turn,
        "places": [_encode_held(held) for held in cluster.held_places(job)],
        "nominated": {t.key: t.nominated_node for t in gang.tasks if t.nominated_node},
    }


def _encode_held(held: Held) -> list[Any]:
    shared_gpus = [astuple(card) for card in held.placement.shared_gpus]
    parts = [astuple(part) for part in held.placement.numa]
    grants = [
        [g.claim, [[request, *d] for request, d in g.devices]] for g in held.placement.devices
    ]
    where = [held.task, held.placement.node, held.since_ms, held.gpus, held.saved_ms]
    return [*where, shared_gpus, parts, grants]


def _read_place(given: list[Any]) -> Held:
    task, node, since_ms, gpus, saved_ms, shared_gpus, parts, grants = given
    placement = Placement(
        node,
        shared_gpus=tuple(GpuShare(*c) for c in shared_gpus),
        numa=tuple(NumaPart(*p) for p in parts),
        devices=tuple(
            DeviceGrant(claim, tuple((request, DeviceId(*which)) for request, *which in devices))
            for claim, devices in grants
        ),
    )
    return Held(task, placement, since_ms, tuple(gpus), saved_ms)
