"""The verifier: checks every plan against every hard rule, using only cluster objects."""
