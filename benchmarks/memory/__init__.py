"""A Datastore in memory whose queries only read their results, like the service's.

The emulators read all rows of a kind for each query, so with them the cost of an item grows with
the number of stored rows. Here each form of query has a sorted index, and a query reads its range.
`python -m benchmarks.memory PORT` serves it over gRPC.

It supports the calls of the library: commits by version, increments, snapshots, transactions whose
first commit wins, and answers with at most 300 results. An unknown form of query is UNIMPLEMENTED.
`tests/contracts/test_memory_store.py` compares it with an emulator.
"""
