"""Chaos: the whole stack under load of every pattern, and faults drawn by a seed, some in pairs.

    make chaos SECONDS=60 SEED=331

- command: the options, the rounds, and the tables at the end
- stage: the stack, with a wire and proxies between it and its services
- faults: what strikes, by name
- clocks: clocks of processes that are moved
- loads: flows and lanes, beside the loads of `benchmarks.healing`
- short_answers: answers of Datastore that are cut short while it strikes
- terminal: the lines that the terminal shows meanwhile, by `python -m benchmarks.chaos.terminal`
"""
