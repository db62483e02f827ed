"""Job plugins; each one changes a job's pods and may create further objects.

Names, arguments and formats follow Volcano's pkg/controllers/job/plugins.
"""
