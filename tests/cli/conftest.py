"""Fixtures of the tests of commands."""

from tests.cli.clusters import cluster

__all__ = ["cluster"]
