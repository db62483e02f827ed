"""Plugins of jobs: each changes the pods of a job and may create further objects.

Source of names, arguments and formats: Volcano, pkg/controllers/job/plugins.
"""
