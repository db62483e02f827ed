"""Tests of the readers and writers of pods."""
