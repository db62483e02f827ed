"""The kinds that a scheduler reads and writes: parsers, defaults, validation and schemas.

Parsers take plain mappings and return frozen dataclasses with exact integers, and an error for each
field that cannot be read. This package depends on no API client and no file format. This package
makes no decisions: `optsched.cluster` and the packages above it interpret the objects.
"""
