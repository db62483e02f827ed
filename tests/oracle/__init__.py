"""Check random clusters against properties that every plan must have.

`python -m tests.oracle --seed N` draws clusters. `runner.py` selects the checks.
"""
