"""Tests of `optsched.kube.reflector`."""
