"""Scaling: intervals of keys, split and merged by their load.

A worker measures its interval (`load_meter`), which `autosplit` splits or merges by the commits of
`resharding`. A worker with little to do yields to intervals without one (`yielding`).

It uses `exchange` for wake-ups and `graph` for the head; `workers`, the coordinator and the
pipeline use it.
"""
