"""`optsched local`: a Kubernetes control plane on the local machine, for experiments."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from optsched.cli.base.command_errors import Group
from optsched.cli.base.console import PlainConsole, echo
from optsched.cli.base.options import ParsedText, RenamedOption, WholeNumber
from optsched.cli.base.path_arguments import OutputPath
from optsched.local.assets import AssetsError, cache_directory, require, shipped
from optsched.local.components import Lifetime, Options
from optsched.local.kubectl import KubectlError, manifest_list, node_manifest
from optsched.local.plane import ControlPlane, PlaneError, wipe
from optsched.units import parse_amount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def _amount_type(resource: str) -> ParsedText[str]:
    """Return an option type for a positive amount of a node resource; the text is not converted."""

    def parse(text: str) -> str:
        if parse_amount(resource, text) <= 0:
            raise ValueError(f"{text}: write an amount above zero, such as 4 or 16Gi")
        return text

    return ParsedText("text", parse)


directory_option = click.option(
    "--dir",
    "directory",
    type=OutputPath(path_type=Path, file_okay=False),
    default=lambda: cache_directory(os.environ) / "local",
    show_default="local, in the cache folder",
    help="Folder for the control plane's objects, certificates and logs.",
)


@click.group(cls=Group)
def local() -> None:
    """Run a Kubernetes control plane on this machine, with emulated nodes."""


@local.command("up")
@directory_option
@click.option(
    "--kube-scheduler/--no-kube-scheduler",
    "--scheduler/--no-scheduler",
    "scheduler",
    cls=RenamedOption,
    former=("--scheduler", "--no-scheduler"),
    default=False,
    help="Run kube-scheduler as well.",
)
@click.option("--nodes", type=WholeNumber(min=0), default=0, help="Number of nodes to create.")
@click.option(
    "--cpu", type=_amount_type("cpu"), default="4", show_default=True, help="CPU of each node."
)
@click.option(
    "--memory",
    type=_amount_type("memory"),
    default="16Gi",
    show_default=True,
    help="Memory of each node.",
)
@click.option("--gpu", type=WholeNumber(min=0), default=0, help="GPUs of each node.")
def start_plane(
    directory: Path, *, scheduler: bool, nodes: int, cpu: str, memory: str, gpu: int
) -> None:
    """Start the control plane, which runs until `optsched local down`."""
    with _report_errors(), _show_progress() as report:
        assets = require(report)
        options = Options(
            lifetime=Lifetime.DETACHED, scheduler=scheduler, definitions=shipped("crds")
        )
        plane = ControlPlane.start(directory, assets, options, on_progress=report)
        if nodes:
            report(f"creating {nodes} nodes")
            names = [f"node-{i:0{len(str(nodes))}}" for i in range(1, nodes + 1)]
            manifests = [node_manifest(name, cpu=cpu, memory=memory, gpu=gpu) for name in names]
            plane.kubectl.apply(manifest_list(manifests))
    echo(f"ready     {plane.server}")
    echo(f"CRDs      {len(plane.definitions)}")
    echo(f"nodes     {nodes} new")
    echo(f"use it    export KUBECONFIG={plane.kubeconfig}")


@local.command("down")
@directory_option
@click.option(
    "--wipe",
    "wiped",
    is_flag=True,
    help="Also delete the control plane's objects and certificates.",
)
def stop_plane(directory: Path, *, wiped: bool) -> None:
    """Stop the control plane; its objects remain for the next `up`."""
    with _report_errors():
        running = ControlPlane.attach(directory).pids
        if wiped:
            wipe(directory)
        else:
            ControlPlane.attach(directory).stop()
    echo(f"stopped {', '.join(running)}" if running else "nothing was running")


@local.command("kubeconfig")
@directory_option
@click.option("--raw", is_flag=True, help="Print the kubeconfig instead of its path.")
def print_kubeconfig(directory: Path, *, raw: bool) -> None:
    """Print the path of the control plane's kubeconfig."""
    with _report_errors():
        path = ControlPlane.attach(directory).kubeconfig
    echo(path.read_text() if raw else str(path), nl=not raw)


@local.command("status")
@directory_option
def show_status(directory: Path) -> None:
    """Show the processes of the control plane; exit with 0 only if it is ready."""
    with _report_errors():
        plane = ControlPlane.attach(directory)
    pids = plane.pids
    for name in plane.components:
        echo(f"{name:24} {pids.get(name, 'not running')}")
    ready = plane.is_ready()
    echo(f"{'ready at' if ready else 'not ready:'} {plane.server}, logs in {plane.layout.logs}")
    raise SystemExit(0 if ready else 1)


@contextmanager
def _report_errors() -> Iterator[None]:
    try:
        yield
    except (AssetsError, PlaneError, KubectlError) as e:
        raise click.ClickException(str(e)) from e


@contextmanager
def _show_progress() -> Iterator[Callable[[str], None]]:
    """Yield a progress callback, which updates a terminal's status line or prints lines."""
    console = PlainConsole(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda message: console.print(Text(message))
        return
    with console.status("") as spinner:
        yield lambda message: spinner.update(Text(message))
