"""Job plugins; each plugin changes the pods of a job and may create further objects for it.

Names, arguments and formats follow Volcano's pkg/controllers/job/plugins.
"""
