"""Tests of `optsched.kube.cache`."""
