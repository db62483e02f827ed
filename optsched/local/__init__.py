"""A real Kubernetes control plane on loopback: etcd, kube-apiserver, controllers and KWOK.

`assets` finds or builds the binaries, `plane` runs them; the rest are the small parts in
between. Nothing here knows a Kubernetes client: requests to the API go through `kubectl`.
"""
