"""A real Kubernetes control plane on loopback: etcd, kube-apiserver, controllers and KWOK.

`assets` finds or builds the binaries, and `plane` runs them; the other modules support these two.
The package uses no Kubernetes client library: requests to the API go through `kubectl`.
"""
