"""Tenants: they share a queue, and one of them floods it, in lanes or in one queue."""
