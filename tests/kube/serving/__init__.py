"""Tests of `optsched.kube.serving`."""
