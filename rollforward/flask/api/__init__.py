"""JSON for programs: pull queues and streams."""
