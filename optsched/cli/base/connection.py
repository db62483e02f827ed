"""The connection of a command to a cluster, and the exit codes of API errors."""

from __future__ import annotations

import asyncio
import functools
import re
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from optsched.admission.names import SUBDOMAIN_RULE
from optsched.api.kinds import NAMESPACE, Ref
from optsched.cli.base.console import print_text, stderr
from optsched.cli.base.options import SERVER_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from optsched.api.kinds import Kind
    from optsched.cli.base.options import Command
    from optsched.kube.client.client import Client
    from optsched.kube.client.errors import KubeError
    from optsched.kube.client.listing import Raw

_BY_WEBHOOK: Final = "denied the request"
"""Text that identifies a webhook's denial in an error message.

The HTTP status does not identify a denial: the API server may also send this status to a user
without the necessary permission.
"""

_MISSING_RIGHT: Final = re.compile(
    r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)

T = TypeVar("T")
U = TypeVar("U")


class Exit(IntEnum):
    """Exit codes of cluster commands; click also uses exit code 2 for unknown options."""

    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    DENIED = 5
    UNREACHABLE = 6
    TIMEOUT = 7
    WAITS = 8
    NEVER = 9


class Failure(click.ClickException):
    """An error that ends a command with an exit code; its message is printed to stderr."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.exit_code = code.value  # type: ignore[misc]  # the exit code differs between instances


@dataclass(frozen=True, slots=True)
class Connection:
    """The connection settings of a command.

    `master` is the address of an API server, which overrides the server in the kubeconfig.
    """

    kubeconfig: str = ""
    master: str = ""


def cluster_options(command: Command) -> Command:
    """Add `--kubeconfig` and `--master` to a command, which gets their values as `connection`."""

    @click.option(
        "-k",
        "--kubeconfig",
        default="",
        show_default="KUBECONFIG, else the pod's service account, else ~/.kube/config",
        help="Path of the kubeconfig.",
    )
    @click.option(
        "-s", "--master", type=SERVER_ADDRESS, default="", help="Address of the API server."
    )
    @functools.wraps(command)
    def wrapped(*arguments: Any, kubeconfig: str, master: str, **flags: Any) -> Any:  # noqa: ANN401
        return command(*arguments, connection=Connection(kubeconfig, master), **flags)

    return wrapped  # type: ignore[return-value]  # `wrapped` and `command` have different parameters


def call_cluster(connection: Connection, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run an async function with a client and return the result; API errors become `Failure`."""
    # The import of the Kubernetes client takes half a second, so --help does not import it.
    from optsched.kube.client import client
    from optsched.kube.client.client import ConfigError
    from optsched.kube.client.errors import KubeError, Unreachable

    async def run_with_client() -> T:
        async with client.connect(
            connection.kubeconfig,
            connection.master,
            lambda warning: print_text(stderr(), f"Warning: {warning}", "yellow"),
        ) as connected:
            return await work(connected)

    try:
        return asyncio.run(run_with_client())
    except ConfigError as e:
        raise Failure(str(e), Exit.UNREACHABLE) from e
    except Unreachable as e:
        raise Failure(f"the cluster cannot be reached: {e}", Exit.UNREACHABLE) from e
    except KubeError as e:
        raise Failure(str(e), exit_code_of(e)) from e


def exit_code_of(error: KubeError) -> Exit:
    """Return the exit code for an API error."""
    from optsched.kube.client import errors

    if isinstance(error, errors.Forbidden) and _BY_WEBHOOK in error.message:
        return Exit.FAILED
    codes: tuple[tuple[type[KubeError], Exit], ...] = (
        (errors.NotFound, Exit.NOT_FOUND),
        (errors.Conflict, Exit.CONFLICT),
        (errors.Unauthorized, Exit.DENIED),
        (errors.Forbidden, Exit.DENIED),
        (errors.Unreachable, Exit.UNREACHABLE),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), Exit.FAILED)


async def read_object(client: Client, ref: Ref) -> Raw:
    """Read an object from the cluster; raise `Failure` if the object does not exist."""
    from optsched.kube.client.errors import NotFound

    try:
        return await client.read(ref)
    except NotFound as e:
        raise missing_object(ref, e) from e


def missing_object(ref: Ref, error: KubeError | None = None) -> Failure:
    """Return the `Failure` for an object that is missing or whose kind is not installed."""
    if error is not None and f'"{ref.name}"' not in str(error):
        return Failure(describe_missing_kind(ref.kind), Exit.NOT_FOUND)
    inside = f" in namespace {ref.namespace}" if ref.namespace else ""
    return Failure(f"{ref.kind.singular} {ref.name} does not exist{inside}", Exit.NOT_FOUND)


def describe_missing_kind(kind: Kind) -> str:
    """Return the error message for a kind whose CustomResourceDefinition is not installed."""
    definition = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
    return f"the cluster has no {definition}: the CustomResourceDefinition is not installed"


async def list_kind(client: Client, kind: Kind, namespace: str = "", **query: str) -> list[Raw]:
    """List the objects of a kind in a namespace.

    An empty `namespace` selects all namespaces. `query` holds the label and field selectors of the
    request.
    """
    from optsched.kube.client.client import list_objects
    from optsched.kube.client.errors import NotFound
    from optsched.kube.client.listing import Selection

    try:
        return await list_objects(client, kind, Selection(namespace, **query))
    except NotFound as e:
        raise Failure(describe_missing_kind(kind), Exit.NOT_FOUND) from e


async def list_in_namespace(
    client: Client, kind: Kind, namespace: str | None, **query: str
) -> list[Raw]:
    """List the objects of a kind in the namespace that the user gave.

    An empty `namespace` selects the namespace of the current context, and None all namespaces.
    Raises `Failure` if the given namespace does not exist, because an empty list would hide the
    mistake.
    """
    inside = "" if namespace is None else namespace or client.namespace
    found = await list_kind(client, kind, inside, **query)
    if not found and namespace:
        await check_exists(client, Ref(NAMESPACE, "", namespace))
    return found


async def check_exists(client: Client, *refs: Ref) -> None:
    """Raise `Failure` if an object named by a list filter, such as `--queue`, does not exist."""
    for ref in refs:
        if not ref.name:
            continue
        subject = f"whether {ref.kind.singular} {ref.name} exists is not checked"
        if await if_allowed(_is_absent(client, ref), subject, otherwise=False):
            raise missing_object(ref)


async def _is_absent(client: Client, ref: Ref) -> bool:
    from optsched.kube.client.errors import NotFound

    try:
        await client.read(ref)
    except NotFound:
        return True
    return False


async def if_allowed(work: Awaitable[T], subject: str, otherwise: U) -> T | U:
    """Return the result of `work`, or `otherwise` if the API server forbids the request.

    `subject` states what the command does not print, such as "the events are not shown".
    """
    from optsched.kube.client.errors import Forbidden

    try:
        return await work
    except Forbidden as e:
        # A message of the API server that does not match the pattern is printed unchanged.
        found, text = _MISSING_RIGHT.search(e.message), e.message
        if found is not None and found["resource"] == "namespaces" and found["namespace"]:
            text = f"you may not {found['verb']} namespace {found['namespace']}"
        elif found is not None:
            inside = f" in namespace {found['namespace']}" if found["namespace"] else ""
            group = f".{found['group']}" if found["group"] else ""
            text = f"you may not {found['verb']} {found['resource']}{group}{inside}"
        print_text(stderr(), f"{subject}: {text}", "dim")
        return otherwise


async def create_object(client: Client, ref: Ref, body: Raw) -> Raw:
    """Create an object; raise `Failure` with the object's name if it already exists."""
    from optsched.kube.client.errors import AlreadyExists, NotFound, Rejected

    try:
        return await client.create(ref, body)
    except Rejected as e:
        if not any(field == "metadata.name" for field, _ in e.causes):
            raise
        text = f"{ref.kind.singular} {ref.name} was not created: the name is not valid"
        raise Failure(f"{text}; {SUBDOMAIN_RULE}") from e
    except AlreadyExists as e:
        inside = f" in namespace {ref.namespace}" if ref.namespace else ""
        text = f"{ref.kind.singular} {ref.name} exists already{inside}"
        raise Failure(text, Exit.CONFLICT) from e
    except NotFound as e:
        text = describe_missing_kind(ref.kind)
        if f'namespaces "{ref.namespace}"' in str(e):
            text = f"namespace {ref.namespace} does not exist"
        raise Failure(text, Exit.NOT_FOUND) from e
