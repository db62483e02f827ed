"""Tests of `optsched.kube.webhook`."""
