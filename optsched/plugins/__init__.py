"""Built-in rules, each with all its parts in one module, and the framework that runs them.

`extension_points` declares what a rule may implement, `registry` lists the plugins that a
configuration may name, `ruleset` holds the rules that a policy switches on.

A rule reads problems and plans and never calls a solver. Its verifier reads cluster objects in
plain Python and shares no code with the parts that read arrays. So the verifier serves as
specification, as test oracle and as the last check before a bind.
"""
