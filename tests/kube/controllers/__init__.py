"""Tests of `optsched.kube.controllers`."""
