"""`optsched snapshot`: write a live cluster as manifests that `optsched solve` reads."""

from __future__ import annotations

import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from optsched.cli.base.connection import call_cluster, cluster_options
from optsched.cli.base.console import print_text, stderr
from optsched.cli.base.options import POSITIVE_SECONDS, WholeNumber
from optsched.cli.base.path_arguments import OutputPath, check_folder, check_outputs, is_standard
from optsched.formats.files.atomic_write import write_atomically
from optsched.formats.snapshots.writer import bundle_writer, yaml_bundle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.cli.base.connection import Connection
    from optsched.kube.client.listing import Raw


EVERY_S: Final = 10.0
"""Default interval between recorded snapshots, in seconds."""


@click.command()
@cluster_options
@click.option(
    "--out",
    type=OutputPath(path_type=Path, dir_okay=False),
    help="Write to this file instead of stdout; its extension selects YAML or JSON.",
)
@click.option(
    "--record",
    "folder",
    type=OutputPath(path_type=Path, file_okay=False),
    help="Write snapshots periodically into this folder, for `optsched simulate`.",
)
@click.option(
    "--every",
    type=POSITIVE_SECONDS,
    show_default=f"{EVERY_S:g}",
    help="Seconds between two snapshots of --record.",
)
@click.option(
    "--times", type=WholeNumber(min=1), help="Number of snapshots; unlimited if not given."
)
def snapshot(
    connection: Connection,
    out: Path | None,
    folder: Path | None,
    every: float | None,
    times: int | None,
) -> None:
    """Write the cluster objects that a scheduler reads.

    The command is read-only. Secrets are not read, and container fields that no scheduler reads are
    omitted. With --record, the command takes snapshots until it is interrupted.
    """
    check_folder("--record", folder)
    if folder is not None:
        if out is not None:
            raise click.UsageError(
                "--out writes one snapshot, --record many: give only one of them"
            )
        _record_snapshots(connection, folder, every or EVERY_S, times)
        return
    for option, given in (("--every", every), ("--times", times)):
        if given is not None:
            raise click.UsageError(f"{option} is valid only with --record")
    out = None if is_standard(out) else out
    try:
        write = yaml_bundle if out is None else bundle_writer(out)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--out") from e
    if out is not None:
        # The output must not overwrite a kubeconfig.
        from optsched.kube.client.kubeconfig import default_places, list_paths

        check_outputs({"--out": [out]}, list_paths(connection.kubeconfig or default_places()))
    objects = _capture(connection)
    try:
        if out is not None:
            write_atomically(out, "".join(write(objects)))
        else:
            with click.open_file("-", "w", encoding="utf-8") as file:
                file.writelines(write(objects))
    except OSError as e:
        raise click.ClickException(f"{out or 'standard output'}: {e.strerror}") from e
    print_text(stderr(), f"{out or 'written'}: {_count_kinds(objects)}", "dim")


def _record_snapshots(
    connection: Connection, folder: Path, every_s: float, times: int | None
) -> None:
    """Write a snapshot every `every_s` seconds; each file is written atomically."""
    taken = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = len(list(folder.glob("snapshot-*.yaml")))
        for taken in count(1) if times is None else range(1, times + 1):
            objects = _capture(connection)
            target = folder / f"snapshot-{before + taken:06d}.yaml"
            write_atomically(target, "".join(yaml_bundle(objects)))
            print_text(stderr(), f"{target}: {_count_kinds(objects)}", "dim")
            if taken != times:
                time.sleep(every_s)
    except OSError as e:
        raise click.ClickException(f"{e.filename or folder}: {e.strerror}") from e
    except KeyboardInterrupt:
        print_text(stderr(), f"stopped after {taken} snapshots in {folder}", "dim")


def _capture(connection: Connection) -> list[Raw]:
    # The import of the Kubernetes client takes half a second, so other commands skip it.
    from optsched.kube.client.capture import capture
    from optsched.kube.runtime.timing import SystemClock

    return call_cluster(connection, lambda client: capture(client, SystemClock().now_ms()))


def _count_kinds(objects: Iterable[Raw]) -> str:
    numbers = Counter(obj["kind"] for obj in objects)
    return ", ".join(f"{number} {kind}" for kind, number in sorted(numbers.items()))
