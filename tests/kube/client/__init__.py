"""Tests of `optsched.kube.client`."""
