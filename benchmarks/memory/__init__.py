"""A Datastore in memory whose queries cost what they return, as the service's do.

The emulators read all rows of a kind for each query, so with them the cost of an item grows with
the rows that are there. Here an index is sorted for each form of a query, and a query reads its
part. `python -m benchmarks.memory PORT` serves it over gRPC.

It has what the library asks for: commits by version, increments, snapshots, transactions of which
the first commit wins, and answers that are cut at 300 results. A form that it does not know is
UNIMPLEMENTED. `tests/contracts/test_memory_store.py` compares it with an emulator.
"""
