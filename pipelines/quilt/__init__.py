"""Quilt: each task of a batch paints a square; one more task runs when all squares are painted.

Pattern: batches of tasks with a completion callback, also nested.
Seed: D. Hermes, "Last to cross the finish line", 2012.
"""
