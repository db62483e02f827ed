"""The objects that a job needs beside its pods: those of its plugins, and its claims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.api.kinds import JOB, PERSISTENT_VOLUME_CLAIM
from optsched.controllers.effects import Again, Create, Patch
from optsched.controllers.job.plugins.base import is_of_job
from optsched.controllers.job.plugins.registry import plugins_of
from optsched.controllers.job.volumes import claims_of, wanted_claims
from optsched.controllers.manifests import controller_of, owner_reference, part, uid_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from optsched.api.job import Job
    from optsched.controllers.effects import Effect, Manifest
    from optsched.controllers.job.plugins.base import Extra, KeyPair
    from optsched.controllers.world import World

LEFT_OVER_S: Final = 1.0
"""How soon to look again for what an earlier job of the name has left, and somebody clears away."""


def extra_effects(
    job: Job, manifest: Manifest, world: World, new_keys: Callable[[], KeyPair]
) -> Iterator[Effect]:
    """Make what is not there, and put right what no longer fits."""
    for plugin, flags in plugins_of(job):
        for extra in plugin.extras(job, flags):
            yield from _effects(extra, job, manifest, world, new_keys)
    for claim in wanted_claims(job, manifest):
        name = claim["metadata"]["name"]
        if world.get(PERSISTENT_VOLUME_CLAIM, job.meta.namespace, name) is None:
            yield Create(PERSISTENT_VOLUME_CLAIM, claim)


def controlled(job: Job) -> dict[str, str]:
    """What a job's status lists as made for it (`status.controlledResources`)."""
    plugins = {f"plugin-{plugin.name}": plugin.name for plugin, _ in plugins_of(job)}
    return {**plugins, **{f"volume-pvc-{name}": name for name in claims_of(job) if name}}


def _effects(
    extra: Extra,
    job: Job,
    manifest: Manifest,
    world: World,
    new_keys: Callable[[], KeyPair],
) -> Iterator[Effect]:
    known = world.get(extra.kind, job.meta.namespace, extra.name)
    if known is None:
        yield Create(extra.kind, _manifest(extra, job, manifest, new_keys))
        return
    owner = controller_of(known)
    if owner is None or owner.get("uid") != job.meta.uid:
        if is_of_job(owner, job):
            yield Again(LEFT_OVER_S)
        return  # somebody else's of that name: it is used as it is
    changes = {
        name: merged
        for name, fields in extra.kept.items()
        if (merged := _difference(part(known, name), fields))
    }
    if changes:
        yield Patch(extra.kind, job.meta.namespace, extra.name, changes, uid_of(known))


def _manifest(
    extra: Extra, job: Job, manifest: Manifest, new_keys: Callable[[], KeyPair]
) -> dict[str, Any]:
    made = extra.manifest if extra.with_keys is None else extra.with_keys(new_keys())
    return {
        "apiVersion": extra.kind.api_version,
        "kind": extra.kind.kind,
        "metadata": {
            "name": extra.name,
            "namespace": job.meta.namespace,
            "labels": {wellknown.JOB_NAME: job.meta.name},
            "ownerReferences": [owner_reference(JOB, manifest)],
        },
        **made,
    }


def _difference(have: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    gone = {name: None for name in have if name not in wanted and name not in _SECRETS}
    return {**{name: v for name, v in wanted.items() if have.get(name) != v}, **gone}


_SECRETS: Final = frozenset({"id_rsa", "id_rsa.pub", "authorized_keys"})
"""Keys of a Secret that are made once."""
