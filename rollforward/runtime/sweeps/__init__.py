"""Rounds of sweeps: which pending rows each of them wakes."""
