"""Benchmark of the Cloud Tasks emulator: rates of creates and dispatches, token buckets, memory."""
