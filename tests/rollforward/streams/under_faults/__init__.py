"""Streams on the services, with a fault at each remote call."""
