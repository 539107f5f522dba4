"""Rate and lag of fork-join queues, counters and batches by the number of workers.

The shipped code in the simulator's world, whose remote calls take as long as a profile of the cloud
draws. `python -m tests.simulation.curves` prints the tables of docs/performance/growth.md.
"""
