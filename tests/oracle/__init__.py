"""Random clusters, checked against properties that every plan must have.

`python -m tests.oracle --seed N` draws clusters; see `runner.py` for the checks.
"""
