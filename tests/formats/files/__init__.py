"""Tests of the reading and writing of files."""
