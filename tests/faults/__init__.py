"""Run schedulers and controllers under faults, on a real API server: `make e2e-faults SEEDS=N`."""
