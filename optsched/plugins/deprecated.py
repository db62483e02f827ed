"""Names of extension points that have changed, and how a class that uses an old one still works."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Renamed: TypeAlias = "Mapping[str, tuple[str, Callable[[Any], Any] | None]]"


def adopt_old_names(kind: type, renamed: Renamed) -> None:
    """Give a class the new names of the methods that it defines by old ones, with a warning.

    Parameters
    ----------
    kind
        The class that has just been defined.
    renamed
        By old name, the new one, and what makes the new method of the old one where its arguments
        have changed; None where they have not.

    """
    for old, (new, adapt) in renamed.items():
        if old not in vars(kind) or new in vars(kind):
            continue
        warnings.warn(
            f"{kind.__name__}.{old} is deprecated: name it {new}", DeprecationWarning, stacklevel=4
        )
        method = vars(kind)[old]
        setattr(kind, new, adapt(method) if adapt else method)
