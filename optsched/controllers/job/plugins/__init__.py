"""Plugins of jobs: what each adds to pods, and which objects it needs beside them.

Source of names, arguments and formats: Volcano, pkg/controllers/job/plugins.
"""
