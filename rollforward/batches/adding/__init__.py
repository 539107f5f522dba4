"""Adding members: pages are stored and counted, then their tasks are created."""
