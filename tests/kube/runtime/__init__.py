"""Tests of `optsched.kube.runtime`."""
