"""Readers and writers of Kubernetes and Volcano objects, one module or package per kind."""
