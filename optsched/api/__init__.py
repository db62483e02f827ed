"""Parsers, defaults, validation and schemas of the Kubernetes kinds that optsched uses.

Each parser converts a plain mapping to a frozen dataclass with exact integers, and returns an error
for each field that cannot be read. This package depends on no API client and no file format. The
package makes no scheduling decisions: `optsched.cluster` and the packages above it interpret the
objects.
"""
