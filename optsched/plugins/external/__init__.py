"""Extenders: HTTP services that filter and score nodes and vote on gangs, queues and victims."""
