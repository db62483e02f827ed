"""Tests of how pods are read and written."""
