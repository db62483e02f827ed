"""Tests of published traces and of the project's trace format."""
