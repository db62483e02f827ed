"""Commands that try the scheduler on this machine: a local control plane and a demo."""
