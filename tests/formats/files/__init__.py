"""Tests of files in general."""
