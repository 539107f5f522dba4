"""Test kit."""
