"""Commands on jobs, JobFlows, pods and queues, and their output."""
