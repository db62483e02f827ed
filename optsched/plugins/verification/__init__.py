"""The verifier: checks every plan against every hard rule, from domain objects alone."""
