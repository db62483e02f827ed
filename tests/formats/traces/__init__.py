"""Tests of published and own traces."""
