"""`optsched queue`: commands for queues."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from optsched.api.kinds import COMMAND, QUEUE, Ref
from optsched.api.wellknown import CLOSED_BY_PARENT, DEFAULT_QUEUE, ROOT_QUEUE
from optsched.cli.base.command_errors import Group
from optsched.cli.base.connection import (
    Exit,
    Failure,
    call_cluster,
    cluster_options,
    create_object,
    list_kind,
    read_object,
)
from optsched.cli.base.options import (
    MOST_INT32,
    TABLE,
    WIDE,
    WholeNumber,
    add_options,
    output_option,
    print_change,
    print_object,
    show_list,
    show_table,
)
from optsched.cli.base.table_columns import (
    QUEUES,
    Column,
    Table,
    format_amounts,
    name_of,
    order_as_tree,
    parent_of,
)
from optsched.cli.live.manifests import (
    AMOUNTS,
    QueueFlags,
    command_manifest,
    queue_manifest,
    queue_spec,
)
from optsched.cli.live.target_names import complete_names, single_name
from optsched.units import parse_amount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cli.base.connection import Connection
    from optsched.cli.base.options import Command
    from optsched.kube.client.client import Client

    Raw = Mapping[str, Any]

OPEN: Final = "OpenQueue"
CLOSE: Final = "CloseQueue"
_ACTIONS: Final = {"open": OPEN, "close": CLOSE}
_UPDATE: Final = "update"
_SHUT: Final = ("Closed", "Closing")
_BUILTIN: Final = (DEFAULT_QUEUE, ROOT_QUEUE)
_IDLE_IN_ROOT: Final = {
    "weight": f"the weight of queue {ROOT_QUEUE} has no effect: root has no siblings",
    "priority": f"the priority of queue {ROOT_QUEUE} has no effect: root has no siblings",
    "parent": f"the parent of queue {ROOT_QUEUE} has no effect: root has no parent",
    "reclaimable": f"the field reclaimable of queue {ROOT_QUEUE} has no effect: root has no jobs",
}
"""Errors for fields that have no effect on the root queue, keyed by field."""


def queue_name(command: Command) -> Command:
    """Add NAME, `-N` and `-n` to a command, which gets the name of the queue as `name`."""

    @click.argument("positional", metavar="NAME", default="", shell_complete=complete_names(QUEUE))
    @click.option("-N", "--name", "flag", default="", help="Name of the queue.")
    @click.option("-n", "short", default="", help="Name of the queue, as in vcctl.")
    @functools.wraps(command)
    def wrapped(positional: str, flag: str, short: str, **flags: Any) -> Any:  # noqa: ANN401
        name = single_name((positional, flag, short), "names")
        if not name:
            raise click.UsageError(
                "a name is missing: write the queue's name after the command, or after -N"
            )
        return command(name=name, **flags)

    return wrapped  # type: ignore[return-value]  # `wrapped` and `command` have different parameters


def spec_options(command: Command) -> Command:
    """Add an option for each queue spec field to a command, which gets the values as `fields`."""
    described = add_options(
        click.option("-w", "--weight", type=WholeNumber(1, 65535), help="Relative share."),
        click.option("--capability", type=AMOUNTS, help="Upper limit of resources."),
        click.option("--deserved", type=AMOUNTS, help="Deserved resources."),
        click.option("--guarantee", type=AMOUNTS, help="Guaranteed resources."),
        click.option("--parent", default="", help="Parent queue."),
        click.option(
            "--priority",
            type=WholeNumber(0, MOST_INT32),
            help="Queues with higher priority come first.",
        ),
        click.option("--reclaimable/--no-reclaimable", default=None, help="Allow reclaim."),
    )

    @functools.wraps(command)
    def wrapped(**flags: Any) -> Any:  # noqa: ANN401
        fields = {name: flags.pop(name) for name in QueueFlags.__dataclass_fields__}
        return command(fields=QueueFlags(**fields), **flags)

    return described(wrapped)  # type: ignore[return-value]  # parameters differ from `command`'s


@click.group(cls=Group)
def queue() -> None:
    """List, show, create, open, close, change and delete queues."""


@queue.command("list")
@cluster_options
@output_option()
@click.option("--tree", is_flag=True, help="Show queues as a tree.")
def list_queues(connection: Connection, form: str, *, tree: bool) -> None:
    """List all queues."""
    found = call_cluster(connection, lambda client: list_kind(client, QUEUE))
    if tree and form in (TABLE, WIDE) and found:
        placed = order_as_tree(found)
        lead = {name_of(obj): strokes for obj, strokes in placed}
        name = Column("Name", lambda obj, _: lead[name_of(obj)] + name_of(obj))
        table = Table(QUEUES.read, (name, *QUEUES.columns[1:]))
        show_table(table, [obj for obj, _ in placed], wide=form == WIDE)
    else:
        show_list(QUEUE, found, form)


@queue.command("get")
@cluster_options
@output_option()
@queue_name
def get_queue(connection: Connection, form: str, name: str) -> None:
    """Show one queue."""
    print_object(
        QUEUE,
        call_cluster(connection, lambda client: read_object(client, Ref(QUEUE, "", name))),
        form,
    )


@queue.command("create")
@cluster_options
@output_option()
@queue_name
@spec_options
@click.option(
    "-S",
    "--state",
    type=click.Choice(["Open", "Closed"], case_sensitive=False),
    default="Open",
    show_default=True,
    help="Initial state of the queue.",
)
def create_queue(
    connection: Connection, form: str, name: str, fields: QueueFlags, state: str
) -> None:
    """Create a queue, of weight 1 by default."""
    manifest = queue_manifest(name, fields if fields.weight else replace(fields, weight=1))

    async def create_queue(client: Client) -> Raw:
        queue = await create_object(client, Ref(QUEUE, "", name), manifest)
        if state != "Open":
            await _command(client, queue, CLOSE)
        return queue

    print_change(
        QUEUE, call_cluster(connection, create_queue), form, f"create queue {name} successfully"
    )


@queue.command("operate")
@cluster_options
@output_option()
@queue_name
@spec_options
@click.option(
    "-a", "--action", type=click.Choice([*_ACTIONS, _UPDATE]), required=True, help="The action."
)
def operate_queue(
    connection: Connection, form: str, name: str, fields: QueueFlags, action: str
) -> None:
    """Open, close or change a queue.

    To open or close a queue, the command creates a Command, which the queue controller executes.
    """
    patch = queue_spec(fields)
    if action == _UPDATE and not patch:
        raise click.UsageError("nothing to update: give --weight, --capability or another field")
    if action != _UPDATE and patch:
        raise click.UsageError(f"--{next(iter(patch))} is valid only with --action update")

    done = f"{action} queue {name} successfully"

    async def operated(client: Client) -> tuple[Raw, str]:
        obj = await read_object(client, Ref(QUEUE, "", name))
        if action == _UPDATE:
            idle = next((text for field, text in _IDLE_IN_ROOT.items() if field in patch), "")
            if name == ROOT_QUEUE and idle:
                raise Failure(idle, Exit.CONFLICT)
            spec = obj.get("spec") or {}
            if all(_includes(spec.get(key), value, key) for key, value in patch.items()):
                return obj, f"queue {name} already has these values"
            return await client.patch(Ref(QUEUE, "", name), {"spec": patch}), done
        states = {name_of(each): state_of(each) for each in await list_kind(client, QUEUE)}
        if action == "close" and name == ROOT_QUEUE:
            why = "every other queue is below it"
            raise Failure(f"queue {name} cannot be closed: {why}", Exit.CONFLICT)
        parent = parent_of(obj)
        if action == "open" and states.get(parent) in _SHUT:
            why = f"its parent {parent} is closed: open {parent} first"
            raise Failure(f"queue {name} stays closed while {why}", Exit.CONFLICT)
        if _has_state(obj, action):
            return obj, f"queue {name} is {state_of(obj)} already"
        await _command(client, obj, _ACTIONS[action])
        return obj, done

    obj, message = call_cluster(connection, operated)
    print_change(QUEUE, obj, form, message)


def _has_state(obj: Raw, action: str) -> bool:
    """Return whether a queue is already in the state that an action sets, and will stay in it.

    A queue that closed only because its parent closed reopens when its parent reopens.
    """
    if action == "open":
        return state_of(obj) == "Open"
    annotations = (obj.get("metadata") or {}).get("annotations") or {}
    return state_of(obj) in _SHUT and annotations.get(CLOSED_BY_PARENT) != "true"


def _includes(old: Any, new: Any, name: str) -> bool:  # noqa: ANN401  JSON
    if not isinstance(new, dict):
        return type(old) is type(new) and bool(old == new)
    if not isinstance(old, dict):
        return False
    if name in ("capability", "deserved", "resource"):
        return all(
            key in old and parse_amount(key, old[key]) == parse_amount(key, amount)
            for key, amount in new.items()
        )
    return all(_includes(old.get(key), value, key) for key, value in new.items())


def state_of(obj: Raw) -> str:
    """Return the state in a queue's status; empty if there is none."""
    return str((obj.get("status") or {}).get("state") or "")


async def _command(client: Client, obj: Raw, action: str) -> None:
    manifest = command_manifest(QUEUE, obj, action, client.namespace)
    await create_object(client, Ref(COMMAND, client.namespace, ""), manifest)


@queue.command("delete")
@cluster_options
@output_option()
@queue_name
def delete_queue(connection: Connection, form: str, name: str) -> None:
    """Delete a queue that has neither child queues nor allocated pods."""

    async def deleted(client: Client) -> Raw:
        obj = await read_object(client, Ref(QUEUE, "", name))
        problem = why_not_deleted(obj, await list_kind(client, QUEUE))
        if problem:
            raise Failure(f"queue {name} is not deleted: {problem}", Exit.CONFLICT)
        await client.delete(Ref(QUEUE, "", name), obj["metadata"]["uid"])
        return obj

    print_change(
        QUEUE, call_cluster(connection, deleted), form, f"delete queue {name} successfully"
    )


def why_not_deleted(obj: Raw, queues: Sequence[Raw]) -> str:
    """Return why a queue cannot be deleted; empty if it can be deleted.

    `queues` lists all queues.
    """
    name = name_of(obj)
    if name in _BUILTIN:
        return "every cluster needs this queue"
    children = sorted(name_of(each) for each in queues if parent_of(each) == name)
    if children:
        return f"its child queues are {', '.join(children)}"
    allocated = (obj.get("status") or {}).get("allocated") or {}
    held = {resource: q for resource, q in allocated.items() if parse_amount(resource, q)}
    if held:
        return f"its pods hold {format_amounts(held)}"
    return ""
