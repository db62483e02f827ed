"""The kinds that a scheduler reads and writes: parse, default, validate, describe, serialise.

Parsers take plain mappings and return frozen dataclasses with exact integers, and an error for each
field that cannot be read. This package depends on no API client and no file format. The package
makes no decisions: `optsched.cluster` and the packages above it interpret the objects.
"""
