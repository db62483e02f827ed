"""The target object of a command: an argument, `-N`, or `-n` without another name.

`vcctl` takes `-n` for the namespace, guides to Volcano write `-n my-job` for the name. Both mean
what they say: without another name `-n` is the name, with one it is the namespace.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from click.shell_completion import CompletionItem

    from optsched.api.kinds import Kind
    from optsched.kube.client.client import Client

Command = TypeVar("Command", bound="Callable[..., Any]")

COMPLETION_S = 2.0


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a command: one object, or all objects of a namespace.

    Attributes
    ----------
    name
        Empty for all.
    namespace
        Empty for the one of the current context.
    short
        The value of `-n` where no name is given and none is needed.

    """

    name: str
    namespace: str = ""
    short: str = ""

    def inside(self, client: Client) -> str:
        """Return the namespace, by default that of the current context."""
        return self.namespace or client.namespace


def target_of(names: Sequence[str], short: str, namespace: str) -> Target:
    """names: those that are given as names. short: what `-n` says. namespace: `--namespace`.

    Raises click.UsageError for none, for two different ones, and for two namespaces.
    """
    name = single_name(names, "names")
    if name:
        return Target(name, single_name((short, namespace), "namespaces"))
    if short:
        return Target(check_name(short), check_name(namespace))
    raise click.UsageError("a name is missing: write it behind the command, or after -N")


def single_name(values: Sequence[str], what: str) -> str:
    """Return the only name, empty for none; raise click.UsageError for two."""
    found = list(dict.fromkeys(check_name(value) for value in values if value))
    if len(found) > 1:
        raise click.UsageError(f"two {what} are given: {' and '.join(found)}")
    return found[0] if found else ""


def check_name(name: str) -> str:
    """Return the name; raise click.UsageError if it would change the request path."""
    if name in (".", "..") or any(c in "/%" or not c.isprintable() for c in name):
        text = repr(name) if name.isprintable() else ascii(name)
        raise click.UsageError(f"{text} is no name of an object: write letters, digits, - and .")
    return name


class ObjectName(click.ParamType[str]):
    """The name of an object or a namespace; may be empty."""

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
    """Add `-n`, `--namespace`. shown: the default in the help."""
    return click.option(
        "-n",
        "--namespace",
        type=ObjectName(),
        default="",
        show_default=shown,
        help="The namespace.",
    )


def target_options(kind: Kind, *, is_needed: bool = True) -> Callable[[Command], Command]:
    """Add NAME, `-N`, `-n` and `--namespace`; the command gets them as one `target`.

    is_needed: without a name it is a mistake; else the name is empty, and the command decides.
    """
    short_help = "The namespace; the name, if no other is given." if is_needed else "The namespace."
    named = f"The {kind.singular}."

    def add(command: Command) -> Command:
        @click.argument("name", default="", shell_complete=names_of(kind))
        @click.option("-N", "--name", "flag", default="", shell_complete=names_of(kind), help=named)
        @click.option("-n", "short", default="", help=short_help)
        @click.option(
            "--namespace",
            default="",
            show_default="the current context's",
            help="The namespace, in every case.",
        )
        @functools.wraps(command)
        def wrapped(name: str, flag: str, short: str, namespace: str, **flags: Any) -> Any:  # noqa: ANN401
            if not is_needed and not (name or flag):
                target = Target("", check_name(namespace), check_name(short))
            else:
                target = target_of((name, flag), short, namespace)
            return command(target=target, **flags)

        return wrapped  # type: ignore[return-value]  # with four arguments instead of one

    return add


def names_of(kind: Kind) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return a shell completion of names from the cluster; it is empty on errors and timeouts."""

    def complete(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from optsched.cli.base.connection import Place

        flags = context.params
        place = Place(flags.get("kubeconfig") or "", flags.get("master") or "")
        namespace = flags.get("namespace") or flags.get("short") or ""
        found = known_names(kind, place, namespace if kind.namespaced else "")
        return [CompletionItem(name) for name in found if name.startswith(begun)]

    return complete


def known_names(kind: Kind, place: Any, namespace: str = "") -> list[str]:  # noqa: ANN401
    """Return the names of a kind's objects; empty if the cluster does not answer quickly."""
    import asyncio

    from optsched.cli.base.connection import call_cluster
    from optsched.cli.objects.table_columns import name_of
    from optsched.kube.client.listing import Selection
    from optsched.kube.client.queries import list_objects

    async def names(client: Client) -> list[str]:
        inside = (namespace or client.namespace) if kind.namespaced else ""
        async with asyncio.timeout(COMPLETION_S):
            return [name_of(obj) for obj in await list_objects(client, kind, Selection(inside))]

    try:
        return sorted(call_cluster(place, names))
    except (click.ClickException, TimeoutError):
        return []
