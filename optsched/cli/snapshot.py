"""`optsched snapshot`: a live cluster as manifests that `optsched solve` reads."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from optsched.cli.screen import remarks, say
from optsched.formats.encode import bundle_writer, yaml_bundle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.kube.ports import Raw


@click.command()
@click.option(
    "--kubeconfig",
    default="",
    show_default="KUBECONFIG, else the pod's service account",
    help="How to reach the cluster.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write to this file, in YAML or JSON by its ending, and not to the standard output.",
)
def snapshot(kubeconfig: str, out: Path | None) -> None:
    """Write a cluster's nodes, pods, PodGroups, queues and whatever else decides about pods.

    Nothing is changed. Secrets are not read, and what containers run is left out.
    """
    try:
        write = yaml_bundle if out is None else bundle_writer(out)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--out") from e
    objects = _captured(kubeconfig)
    try:
        with click.open_file("-" if out is None else str(out), "w", encoding="utf-8") as file:
            file.writelines(write(objects))
    except OSError as e:
        raise click.ClickException(f"{out or 'standard output'}: {e.strerror}") from e
    say(remarks(), f"{out or 'written'}: {_counts(objects)}", "dim")


def _captured(kubeconfig: str) -> list[Raw]:
    # Kubernetes' client takes half a second to load; other commands and --help do without.
    from optsched.kube.capture import capture
    from optsched.kube.client import ConfigError, connect
    from optsched.kube.clock import SystemClock
    from optsched.kube.errors import KubeError

    async def captured() -> list[Raw]:
        async with connect(kubeconfig) as client:
            return await capture(client, SystemClock().now_ms())

    try:
        return asyncio.run(captured())
    except (ConfigError, KubeError) as e:
        raise click.ClickException(str(e)) from e


def _counts(objects: Iterable[Raw]) -> str:
    numbers = Counter(obj["kind"] for obj in objects)
    return ", ".join(f"{number} {kind}" for kind, number in sorted(numbers.items()))


if __name__ == "__main__":
    snapshot()
