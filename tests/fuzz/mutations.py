"""Mutate texts and objects, always in the same way for the same seed."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

MOST = 20_000
"""The maximum number of characters of an input."""

_PIECES = (
    *("", " ", "\n", "\t", "\r\n", "\0", "\x1b[31m", "\u202e", "é", "𝟘", "\ud7ff", "\ufeff"),
    *("0", "-1", "1e400", "9" * 30, "9" * 5000, "NaN", "-0", "0x10", "1_0", "٣", "1.5.2", "+"),
    *("{", "}", "[", "]", '"', "'", ":", ",", "-", "#", "&a", "*a", "<<: *a", "!!python/name:x"),
    *("null", "true", "~", "yes", "---\n", "...\n", "|", ">", "%", "\\", "/", "=", "(", ")", "!"),
    *("1Ki", "5m", "1h", "* * * * *", "@every 1s", "a" * 300, "(" * 200, "[" * 2000, "{a: " * 500),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2**31, 2**63, -(2**70), 10**400, 0.5, 1e300, float("inf")),
    *("", "x", "-", "0", "9" * 400, "a/b/c", "\0", "\x1b[2J", "\ud800", " ", "1e9999", "*"),
    *([], {}, [None], [[]], {"": None}, {"a": {"a": {}}}, ["x"] * 50, [{}] * 20, {"name": 1}),
)


def mutate_text(text: str, random: Random, others: Sequence[str]) -> str:
    """Return a text with some parts changed, omitted, repeated or copied from another text."""
    for _ in range(random.choice((1, 1, 2, 4, 8))):
        at, end = sorted(random.randint(0, len(text)) for _ in "ab")
        end = min(end, at + random.choice((1, 3, 20, 500)))
        match random.randrange(8):
            case 0:
                text = text[:at] + text[end:]
            case 1:
                text = text[:at] + random.choice(_PIECES) + text[at:]
            case 2:
                text = text[:at] + random.choice(_PIECES) + text[end:]
            case 3:
                text = text[:at] + text[at:end] * random.choice((2, 3, 50)) + text[end:]
            case 4:
                text = text[:at] + chr(random.choice((0, 9, 32, 127, 255, 0x3B1))) + text[at + 1 :]
            case 5:
                other = random.choice(others)
                begin = random.randint(0, len(other))
                text = text[:at] + other[begin : begin + 200] + text[end:]
            case 6:
                text = text[:at]
            case _:
                words = text.split(" ")
                random.shuffle(words)
                text = " ".join(words)
    return text[:MOST]


def mutate_object(obj: Any, random: Random, others: Sequence[Any]) -> Any:
    """Return an object with some values or subtrees replaced, omitted or repeated."""
    whole = [deepcopy(obj)]
    for _ in range(random.choice((1, 1, 2, 4, 8))):
        places = list(_places(whole))
        holder, key = random.choice(places)
        match random.randrange(6):
            case 0 if isinstance(holder, dict):
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[str(random.choice(_VALUES))] = holder.pop(key)
            case 2 if isinstance(holder, list) and holder is not whole:
                holder.extend(deepcopy(holder[key]) for _ in range(random.choice((1, 3, 30))))
            case 3:
                other_holder, other_key = random.choice(list(_places([random.choice(others)])))
                holder[key] = deepcopy(other_holder[other_key])
            case 4 if isinstance(holder[key], str):
                holder[key] = mutate_text(holder[key], random, ["x", "1", "a=b,c"])
            case _:
                holder[key] = deepcopy(random.choice(_VALUES))
    return whole[0]


def _places(root: Any) -> Any:
    todo = [root]
    while todo:
        holder = todo.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            yield holder, key
            if isinstance(holder[key], dict | list):
                todo.append(holder[key])


def shown(value: object) -> str:
    """Return the quoted text of an input for a report."""
    text = value if isinstance(value, str) else json.dumps(value, default=repr)
    return repr(text if len(text) <= 2000 else f"{text[:2000]}…")
