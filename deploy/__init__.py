"""What it takes to run optsched: kinds, manifests and the local control plane, shipped as data."""
