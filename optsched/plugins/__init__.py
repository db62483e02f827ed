"""One module per rule with all its faces: verify, encode, greedy (mask, score, order), explain.

A rule knows problems and plans, never an engine. What is below `Rule` is all that engines know of a
rule. The verifying faces look at domain objects in plain Python and share nothing with the arrays
that the other faces compute on: they are specification, test oracle and guard at once.
"""
