"""Interceptors of gRPC channels: cost, deadlines, documented limits."""
