"""Allocate as many GPUs as possible to pods with GPU requests, on nodes of few node classes."""
