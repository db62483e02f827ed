"""Built-in rules, one module each with all its parts, and the framework that runs them.

`extension_points` declares what a rule may implement, `registry` lists the plugins that a
configuration may name, `ruleset` holds the rules that a policy switches on.

A rule knows problems and plans, never an engine. Its verifying part reads domain objects in plain
Python and shares nothing with the arrays that its other parts use: it is specification, test oracle
and guard at once.
"""
