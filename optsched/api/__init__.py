"""The kinds that a scheduler reads and writes: parsers, defaults, validation and schemas.

A parser takes a plain mapping. It returns a frozen dataclass with exact integers, and an error for
each field that cannot be read. This package depends on no API client and no file format. It makes
no decisions: `optsched.cluster` and the packages above it interpret the objects.
"""
