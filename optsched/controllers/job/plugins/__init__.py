"""Plugins of jobs: what each adds to pods, and which further objects it needs.

Source of names, arguments and formats: Volcano, pkg/controllers/job/plugins.
"""
