"""Endpoints that the queue, the scheduler, probes and operators call."""
