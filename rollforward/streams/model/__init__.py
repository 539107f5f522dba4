"""Model: what a user writes, without any service."""
