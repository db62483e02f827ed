"""What is wrong with an object: every field at once, and the exception that carries them."""

from __future__ import annotations

from optsched.units import FieldError

__all__ = ["FieldError", "InvalidObject"]


class InvalidObject(Exception):
    """An object that cannot be used as it is, with everything that is wrong with it.

    Its text has one line for each error: `Queue ml-training: spec.weight: 70000 is ...`.
    """

    def __init__(
        self, kind: str, namespace: str, name: str, errors: tuple[FieldError, ...]
    ) -> None:
        super().__init__(kind, namespace, name, errors)
        self.kind = kind
        self.namespace = namespace
        self.name = name
        self.errors = errors

    def __str__(self) -> str:
        key = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return "\n".join(f"{self.kind} {key}: {error}" for error in self.errors)
