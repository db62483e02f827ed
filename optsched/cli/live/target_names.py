"""The target object of a command, named by an argument, by `-N` or by `-n`.

In `vcctl`, `-n` is the namespace, while guides to Volcano write `-n my-job` for the name. If an
argument or `-N` names the object, optsched reads `-n` as the namespace, and otherwise as the name.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from optsched.api.kinds import is_path_segment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from click.shell_completion import CompletionItem

    from optsched.api.kinds import Kind
    from optsched.cli.base.options import Command
    from optsched.kube.client.client import Client


COMPLETION_S = 2.0


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a command: one object, or all objects in a namespace.

    Attributes
    ----------
    name
        Name of the object; empty for all objects.
    namespace
        Namespace of the object; empty for the namespace of the current context.
    short
        Value of `-n` if no name is given and the command does not require a name.
    """

    name: str
    namespace: str = ""
    short: str = ""

    def inside(self, client: Client) -> str:
        """Return the target's namespace, by default the namespace of the current context."""
        return self.namespace or client.namespace


def target_of(names: Sequence[str], short: str, namespace: str) -> Target:
    """Return the target that a command's options name.

    Raises click.UsageError if no name is given, or if different names or namespaces are given.

    Parameters
    ----------
    names
        Values of the argument and of `-N`.
    short
        Value of `-n`.
    namespace
        Value of `--namespace`.
    """
    name = single_name(names, "names")
    if name:
        return Target(name, single_name((short, namespace), "namespaces"))
    if short:
        return Target(check_name(short), check_name(namespace))
    raise click.UsageError("a name is missing: write it after the command, or after -N")


def single_name(values: Sequence[str], what: str) -> str:
    """Return the value that all non-empty `values` share, or "" if all are empty.

    Raises click.UsageError for different values. `what` is a plural noun for the values in the
    error message.
    """
    found = list(dict.fromkeys(check_name(value) for value in values if value))
    if len(found) > 1:
        raise click.UsageError(f"two {what} are given: {' and '.join(found)}")
    return found[0] if found else ""


def check_name(name: str) -> str:
    """Return a name; raise click.UsageError if it would change the path of an API request."""
    if name and not (is_path_segment(name) and name.isprintable()):
        text = repr(name) if name.isprintable() else ascii(name)
        raise click.UsageError(f"{text} is not an object name: write letters, digits, - and .")
    return name


class ObjectName(click.ParamType[str]):
    """The name of an object or a namespace, or empty."""

    name = "text"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """See `click.ParamType`."""
        try:
            return check_name(str(value))
        except click.UsageError as e:
            self.fail(e.message, param, ctx)


def namespace_option(shown: str = "the current context's") -> Callable[[Command], Command]:
    """Add `-n` and `--namespace` to a command; `shown` is the default in the help text."""
    return click.option(
        "-n",
        "--namespace",
        type=ObjectName(),
        default="",
        show_default=shown,
        help="The namespace.",
    )


def target_options(kind: Kind, *, is_needed: bool = True) -> Callable[[Command], Command]:
    """Add NAME, `-N`, `-n` and `--namespace` to a command, which gets their values as `target`.

    With `is_needed`, a missing name is an error; otherwise the target's name may be empty.
    """
    short_help = (
        "The namespace, or the name if NAME and -N are missing." if is_needed else "The namespace."
    )
    named = f"Name of the {kind.singular}."

    def add(command: Command) -> Command:
        @click.argument("name", default="", shell_complete=complete_names(kind))
        @click.option(
            "-N", "--name", "flag", default="", shell_complete=complete_names(kind), help=named
        )
        @click.option("-n", "short", default="", help=short_help)
        @click.option(
            "--namespace",
            default="",
            show_default="the current context's",
            help="The namespace; never the name.",
        )
        @functools.wraps(command)
        def wrapped(name: str, flag: str, short: str, namespace: str, **flags: Any) -> Any:  # noqa: ANN401
            if not is_needed and not (name or flag):
                target = Target("", check_name(namespace), check_name(short))
            else:
                target = target_of((name, flag), short, namespace)
            return command(target=target, **flags)

        return wrapped  # type: ignore[return-value]  # `wrapped` and `command` have different parameters

    return add


def complete_names(
    kind: Kind,
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return a shell completion that lists the names of a kind's objects; empty after an error."""

    def complete(context: click.Context, _: click.Parameter, prefix: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from optsched.cli.base.connection import Connection

        flags = context.params
        connection = Connection(flags.get("kubeconfig") or "", flags.get("master") or "")
        namespace = flags.get("namespace") or flags.get("short") or ""
        found = known_names(kind, connection, namespace if kind.namespaced else "")
        return [CompletionItem(name) for name in found if name.startswith(prefix)]

    return complete


def known_names(kind: Kind, connection: Any, namespace: str = "") -> list[str]:  # noqa: ANN401
    """Return the names of a kind's objects; empty after an error or after a timeout."""
    import asyncio

    from optsched.cli.base.connection import call_cluster
    from optsched.cli.base.table_columns import name_of
    from optsched.kube.client.client import list_objects
    from optsched.kube.client.listing import Selection

    async def names(client: Client) -> list[str]:
        inside = (namespace or client.namespace) if kind.namespaced else ""
        async with asyncio.timeout(COMPLETION_S):
            return [name_of(obj) for obj in await list_objects(client, kind, Selection(inside))]

    try:
        return sorted(call_cluster(connection, names))
    except (click.ClickException, TimeoutError):
        return []
