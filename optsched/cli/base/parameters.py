"""Parameter types, and options that still accept their former names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from optsched.kube.client.kubeconfig import is_http_address
from optsched.units import QuantityError, parse_amount

if TYPE_CHECKING:
    from collections.abc import Sequence


class ServerAddress(click.ParamType[str]):
    """The address of an API server: `https://HOST:PORT`, optionally with a path; may be empty."""

    name = "address"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """See `click.ParamType`."""
        text = str(value)
        if text and not is_http_address(text):
            self.fail(f"{text!r} is no address of an API server: write https://HOST:PORT", param)
        return text


MOST_CHARACTERS: Final = 253
"""Of the name of an object in Kubernetes."""


class ObjectName(click.ParamType[str]):
    """The name of a queue or a scheduler: not empty, without spaces and control characters."""

    name = "text"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """See `click.ParamType`."""
        text = str(value)
        if not text:
            self.fail("the name is empty: write one, or leave the option out", param, ctx)
        if len(text) > MOST_CHARACTERS:
            self.fail(f"the name has {len(text)} characters, at most {MOST_CHARACTERS} are allowed")
        if not text.isprintable() or " " in text:
            self.fail(f"{text!r} is no name: write it without spaces", param, ctx)
        return text


class Amount(click.ParamType[str]):
    """A positive quantity of a node's resource, kept as written."""

    name = "text"

    def __init__(self, resource: str) -> None:
        self._resource = resource

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """See `click.ParamType`."""
        try:
            is_more = parse_amount(self._resource, str(value)) > 0
        except QuantityError as e:
            self.fail(str(e), param, ctx)
        if not is_more:
            self.fail(f"{value}: write an amount above zero, such as 4 or 16Gi", param, ctx)
        return str(value)


class RenamedOption(click.Option):
    """An option whose former names are accepted but hidden.

    Parameters
    ----------
    former
        Among the names of the option, those that help leaves out.

    """

    def __init__(self, *arguments: Any, former: Sequence[str], **options: Any) -> None:  # noqa: ANN401  click's
        super().__init__(*arguments, **options)
        self.former = frozenset(former)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """See `click.Option`."""
        return " / ".join(f"'{name}'" for name in current_names(self))

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """See `click.Option`."""
        opts, secondary = self.opts, self.secondary_opts
        self.opts, self.secondary_opts = current_names(self), current_names(self, secondary=True)
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts, self.secondary_opts = opts, secondary


def current_names(option: click.Option, *, secondary: bool = False) -> list[str]:
    """Return an option's current names. secondary: the names that turn it off."""
    former = option.former if isinstance(option, RenamedOption) else frozenset[str]()
    return [n for n in (option.secondary_opts if secondary else option.opts) if n not in former]
