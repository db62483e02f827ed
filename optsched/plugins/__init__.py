"""Built-in rules, one module for each, and the framework that runs the rules.

`extension_points` declares what a rule may implement. `registry` lists the plugins that a
configuration may name. `ruleset` holds the rules that a policy switches on.

A rule reads problems and plans and never calls a solver. The verifier of a rule reads cluster
objects in plain Python and shares no code with the methods that read arrays. The verifier therefore
serves as specification, as test oracle and as the last check before a bind.
"""
