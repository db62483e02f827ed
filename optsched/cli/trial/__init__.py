"""Commands for trying the scheduler on one machine: a local control plane and a demo."""
