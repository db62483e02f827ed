"""The built-in rules that scheduling policies may enable, and the framework that runs them.

`extension_points` declares the methods that a rule may implement. `registry` lists the plugins that
a configuration may name. `ruleset` collects the rules that a policy enables.

A rule reads problems and plans; it never calls a solver. The verifier of a rule reads cluster
objects in plain Python and shares no code with the methods that read arrays. Tests therefore use
the verifier as the specification and as an oracle. The scheduler runs the verifier as the last
check before a bind.
"""
