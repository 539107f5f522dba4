"""Scaling: intervals are split and merged by their load."""
