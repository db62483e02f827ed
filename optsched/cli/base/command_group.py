"""Command groups that suggest the closest command for a mistyped one."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

import click

KUBECTL_WORDS: Final = {
    "apply": ("run", "create"),
    "cancel": ("delete",),
    "create": ("run",),
    "describe": ("view", "get"),
    "get": ("view", "list"),
    "ls": ("list",),
    "rm": ("delete",),
    "show": ("view", "get"),
    "submit": ("run", "create"),
    "update": ("operate",),
}
"""Commands of other tools, and their names here."""


class Group(click.Group):
    """A command group whose error for an unknown command suggests a known one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See `click.Group`."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            known = self.list_commands(ctx)
            meant = [word for word in KUBECTL_WORDS.get(name.lower(), ()) if word in known]
            close = meant or get_close_matches(name.lower(), known)
            hint = f" Did you mean {close[0]}?" if close else f" There are {', '.join(known)}."
            ctx.fail(f"There is no command {name!r}.{hint}")
        return super().resolve_command(ctx, args)
