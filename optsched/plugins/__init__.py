"""Built-in rules, one module each with all its parts, and the framework that runs them.

`extension_points` declares what a rule may implement, `registry` lists the plugins that a
configuration may name, `ruleset` holds the rules that a policy switches on.

A rule knows problems and plans, never a solver. Its verifier reads objects of the cluster in plain
Python and shares no code with the parts that read arrays. So it serves as specification, as test
oracle and as the last check before a bind.
"""
