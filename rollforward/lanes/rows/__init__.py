"""Rows of lanes: the tasks that wait, and the state of each key that has some."""
