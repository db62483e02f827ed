"""Commands for jobs, JobFlows, pods and queues, and their output."""
