"""Commands to try the scheduler on one machine: a local control plane and a demo."""
