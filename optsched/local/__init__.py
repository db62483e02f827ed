"""A real Kubernetes control plane on the loopback interface, with KWOK in place of kubelets.

`assets` finds or builds the binaries, and `plane` runs them. The other modules start processes,
call kubectl and describe the components. The package uses no Kubernetes client library: it calls
the API server through `kubectl`.
"""
