"""Tests of the readers and writers of API objects."""
