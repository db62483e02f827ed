"""Texts of users as logs, events and terminals may show them: without control characters."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """The text with an escape for each character that a terminal might act on.

    That are control characters, among them line breaks, and invisible ones that change the
    direction of text. keep: characters that stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
