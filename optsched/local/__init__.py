"""A real Kubernetes control plane on loopback: etcd, kube-apiserver, controllers and KWOK.

`assets` finds or builds the binaries, and `plane` runs the binaries. The other modules contain
helper functions of `assets` and `plane`. The package uses no Kubernetes client library: requests to
the API server go through `kubectl`.
"""
