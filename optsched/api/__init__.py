"""The kinds that a scheduler reads and writes: parse, default, validate, describe, serialise.

Input are plain mappings, output are frozen dataclasses with exact integers and every field that
could not be read. This package knows no client and no file format, and decides nothing: what an
object means for a plan belongs to `optsched.cluster` and above.
"""
