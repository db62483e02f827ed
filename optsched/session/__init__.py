"""A session: snapshot, problem, engine, verification, plan. Pure but for the ports it is given."""
