"""Searches through many drawn schedules."""
