"""Commands on jobs, JobFlows, pods and queues, and what they print."""
