"""Parsers, defaults, validation and schemas of the Kubernetes kinds that optsched uses.

A parser takes a plain mapping. It returns a frozen dataclass with exact integers, and an error for
each field that cannot be read. This package depends on no API client and no file format. It makes
no scheduling decisions: `optsched.cluster` and the packages above it interpret the objects.
"""
