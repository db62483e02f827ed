"""Tests of `optsched.kube.scheduler`."""
