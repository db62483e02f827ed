"""`optsched jobflow` and `optsched jobtemplate`: graphs of dependent jobs, and job templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from optsched.api.kinds import JOB_FLOW, JOB_TEMPLATE, Ref
from optsched.cli.base.command_errors import Group
from optsched.cli.base.connection import (
    Exit,
    Failure,
    call_cluster,
    cluster_options,
    create_object,
    list_in_namespace,
    read_object,
)
from optsched.cli.base.console import echo, print_text, stderr
from optsched.cli.base.options import YAML, output_option, print_change, print_object, show_list
from optsched.cli.base.table_columns import name_of, namespace_of
from optsched.cli.live.manifests import check_manifests, file_option, read_manifests
from optsched.cli.live.target_names import Target, namespace_option, single_name, target_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.api.kinds import Kind
    from optsched.cli.base.connection import Connection
    from optsched.cli.live.manifests import Manifest
    from optsched.kube.client.client import Client

    Raw = Mapping[str, Any]

SEPARATOR: Final = "---------------------------------"


def group_of(kind: Kind, help_text: str) -> click.Group:
    """Return a command group with create, list, get, delete and describe for a kind."""
    group = Group(kind.singular, help=help_text)
    for command in (_create(kind), _list(kind), _get_command(kind), _delete(kind), _describe(kind)):
        group.add_command(command)
    return group


def _create(kind: Kind) -> click.Command:
    @click.command("create", help=f"Create every {kind} in a file.")
    @cluster_options
    @output_option()
    @file_option("The file; - for the standard input.", "path", required=True)
    @namespace_option("the file's, else the context's")
    def command(connection: Connection, form: str, path: str, namespace: str) -> None:
        manifests = _manifests(path, kind, namespace)

        async def create_objects(client: Client) -> list[Failure]:
            failures: list[Failure] = []
            for manifest in manifests:
                inside, obj = namespace or manifest.namespace or client.namespace, manifest.obj
                body = {**obj, "metadata": {**obj["metadata"], "namespace": inside}}
                try:
                    kept = await create_object(client, Ref(kind, inside, manifest.name), body)
                except Failure as e:
                    failures.append(e)
                else:
                    print_change(kind, kept, form, f"Created {kind}: {inside}/{manifest.name}")
            return failures

        _raise_all(call_cluster(connection, create_objects))

    return command


def _manifests(path: str, kind: Kind, namespace: str) -> tuple[Manifest, ...]:
    manifests = read_manifests(path, kind)
    check_manifests(manifests, namespace)
    for remark in (remark for manifest in manifests for remark in manifest.remarks):
        print_text(stderr(), f"Warning: {remark}", "yellow")
    return manifests


def _raise_all(failures: Sequence[Failure]) -> None:
    """If there are failures, raise a `Failure` with all messages and the exit code of the first."""
    if failures:
        text = "\n".join(failure.message for failure in failures)
        raise Failure(text, Exit(failures[0].exit_code))


def _list(kind: Kind) -> click.Command:
    @click.command("list", help=f"List every {kind} of a namespace.")
    @cluster_options
    @output_option()
    @namespace_option()
    @click.option("-A", "--all-namespaces", is_flag=True, help="Objects of all namespaces.")
    def command(connection: Connection, form: str, namespace: str, *, all_namespaces: bool) -> None:
        inside = None if all_namespaces else namespace
        show_list(
            kind,
            call_cluster(connection, lambda client: list_in_namespace(client, kind, inside)),
            form,
        )

    return command


def _get_command(kind: Kind) -> click.Command:
    @click.command("get", help=f"Show one {kind} as a table row.")
    @cluster_options
    @output_option()
    @target_options(kind)
    def command(connection: Connection, form: str, target: Target) -> None:
        print_object(kind, _read_target(connection, kind, target), form)

    return command


def _read_target(connection: Connection, kind: Kind, target: Target) -> Raw:
    return call_cluster(
        connection,
        lambda client: read_object(client, Ref(kind, target.inside(client), target.name)),
    )


def _describe(kind: Kind) -> click.Command:
    @click.command("describe", help=f"Show one stored {kind}, or all in a namespace.")
    @cluster_options
    @output_option(YAML)
    @target_options(kind, is_needed=False)
    def command(connection: Connection, form: str, target: Target) -> None:
        namespace = single_name((target.short, target.namespace), "namespaces")
        found: Sequence[Raw]
        if target.name:
            found = [_read_target(connection, kind, target)]
        else:
            found = call_cluster(
                connection, lambda client: list_in_namespace(client, kind, namespace)
            )
        if not found:
            print_text(stderr(), "No resources found", "dim")
        for i, obj in enumerate(found):
            if i:
                echo(SEPARATOR)
            print_object(kind, obj, form)

    return command


def _delete(kind: Kind) -> click.Command:
    @click.command("delete", help=f"Delete one {kind}, or all in a file.")
    @cluster_options
    @output_option()
    @file_option("The file; - for the standard input.", "path", default="")
    @target_options(kind, is_needed=False)
    def command(connection: Connection, form: str, path: str, target: Target) -> None:
        if path:
            if target.name:
                raise click.UsageError(f"give a file or a name, not both {path} and {target.name}")
            namespace = single_name((target.short, target.namespace), "namespaces")
            manifests = _manifests(path, kind, namespace)
            targets = [Target(m.name, namespace or m.namespace) for m in manifests]
        elif name := target.name or target.short:
            targets = [Target(name, target.namespace)]
        else:
            raise click.UsageError("a name is missing: write it after the command, or give -f FILE")

        async def delete_objects(client: Client) -> list[Failure]:
            failures: list[Failure] = []
            for each in targets:
                ref = Ref(kind, each.inside(client), each.name)
                try:
                    obj = await read_object(client, ref)
                    await client.delete(ref, obj["metadata"]["uid"])
                except Failure as e:
                    failures.append(e)
                else:
                    key = f"{namespace_of(obj)}/{name_of(obj)}"
                    print_change(kind, obj, form, f"Deleted {kind}: {key}")
            return failures

        _raise_all(call_cluster(connection, delete_objects))

    return command


jobflow: Final = group_of(JOB_FLOW, "Manage JobFlows: graphs of dependent jobs.")
jobtemplate: Final = group_of(JOB_TEMPLATE, "Manage JobTemplates, from which JobFlows create jobs.")
