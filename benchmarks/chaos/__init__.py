"""Chaos: the whole stack under load of every pattern, and faults drawn by a seed, some in pairs.

    make chaos SECONDS=60 SEED=331

- command: the options, the rounds, and the tables at the end
- stage: the stack, with a wire and proxies between it and its services
- faults: the faults by name
- clocks: the moved clocks of processes
- loads: flows and lanes, in addition to the loads of `benchmarks.healing`
- short_answers: partial answers of Datastore during a fault
- terminal: the terminal's lines during a load, by `python -m benchmarks.chaos.terminal`
"""
