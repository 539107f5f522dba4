"""Simulator of streams in virtual time, and the invariants that it checks."""
