"""Rows of tasks, for data that Cloud Tasks cannot keep: arguments beyond a task's size."""
