"""Tests of snapshots from objects and files."""
