"""Deliveries of a lane: a key is claimed, some of its tasks run, and the claim is given back."""
