"""The objects and the policy of a cluster, for read-only commands."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from optsched.api.kinds import CONFIG_MAP, PRIORITY_CLASS, Ref
from optsched.cli.base.connection import Exit, Failure
from optsched.cli.base.console import print_text, stderr
from optsched.cli.base.session_context import policy_from, policy_of
from optsched.cli.live.manifests import has_object_fields
from optsched.formats.codec.pods.reader import DEFAULT_NAMESPACE
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.snapshots.instance_files import read_objects
from optsched.policy.load import parse_policy
from optsched.units.input_errors import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from optsched.kube.client.client import Client
    from optsched.kube.client.listing import Raw
    from optsched.policy.policy import Policy

CONFIGURATION: Final = Ref(CONFIG_MAP, "volcano-system", "volcano-scheduler-configmap")
"""The ConfigMap from which an installed scheduler reads its policy."""
CONFIGURATION_FILE: Final = "volcano-scheduler.conf"
MODEL: Final = "volcano-default"
_NO_OBJECT: Final = "is not a Kubernetes object: write apiVersion, kind and metadata"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The objects of a cluster, with the namespace and configuration needed to interpret them.

    Attributes
    ----------
    namespace
        The namespace of the current context.
    configuration
        The text of the scheduler's configuration; empty if unknown.
    """

    objects: Sequence[Raw]
    namespace: str = DEFAULT_NAMESPACE
    configuration: str = ""


def read_cluster_file(path: Path) -> Cluster:
    """Read a cluster from a file; raise `Failure` if the file cannot be read."""
    try:
        objects, problems = read_objects(path)
    except InstanceError as e:
        raise Failure(str(e), Exit.USAGE) from e
    if problems and not objects:
        raise Failure("\n".join(map(str, problems)), Exit.USAGE)
    for problem in problems:
        print_text(stderr(), str(problem), "yellow")
    invalid = next((obj for obj in objects if not has_object_fields(obj)), None)
    if invalid is not None or not objects:
        what = "contains no object" if invalid is None else f"{quote(invalid)} {_NO_OBJECT}"
        raise Failure(f"{path}: {what}", Exit.USAGE)
    return Cluster([dict(obj) for obj in objects])


async def read_cluster(client: Client) -> Cluster:
    """Read the objects and the scheduler configuration of a cluster with a client."""
    from optsched.kube.client.capture import capture
    from optsched.kube.runtime.timing import SystemClock

    captured = capture(client, SystemClock().now_ms())
    objects, text = await asyncio.gather(captured, _configuration(client))
    return Cluster(objects, client.namespace, text)


async def _configuration(client: Client) -> str:
    """Read the text of the scheduler's configuration; empty if it is missing or forbidden."""
    from optsched.kube.client.errors import Forbidden, NotFound

    try:
        found = await client.read(CONFIGURATION)
    except (Forbidden, NotFound):
        return ""
    return str((found.get("data") or {}).get(CONFIGURATION_FILE) or "")


def policy_for(
    cluster: Cluster, model: str = "", solver: str | None = None, plugins_dir: Path | None = None
) -> Policy:
    """Return the policy of `model` if given, else the cluster's policy, else the default policy."""
    console, text = stderr(), cluster.configuration
    if model or not text:
        return policy_of(console, model or MODEL, solver, plugins_dir)
    source = f"{CONFIGURATION.namespace}/{CONFIGURATION.name}"
    return policy_from(
        console, solver, plugins_dir, lambda plugins: parse_policy(text, source, plugins)
    )


def classes_in(objects: Iterable[Any]) -> dict[str, Raw]:
    """Return the PriorityClasses among the given objects, keyed by name."""
    kind = PRIORITY_CLASS.kind
    return {obj["metadata"]["name"]: obj for obj in objects if obj.get("kind") == kind}
