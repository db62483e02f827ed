"""Readers and writers of Kubernetes and Volcano objects, with one module or package per kind."""
