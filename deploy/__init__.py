"""The data that ships with optsched: CRDs, manifests and the local control plane."""
