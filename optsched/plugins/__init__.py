"""The built-in rules of scheduling policies, and the framework that runs the rules.

`extension_points` declares what a rule may implement. `registry` lists the plugins that a
configuration may name. `ruleset` collects the rules that a policy enables.

A rule reads problems and plans and never calls a solver. The verifier of a rule reads cluster
objects in plain Python and shares no code with the methods that read arrays. Tests therefore use
the verifier as specification and as test oracle. The scheduler runs the verifier as the last check
before a bind.
"""
