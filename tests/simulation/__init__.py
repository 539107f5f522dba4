"""A simulator of everything: the shipped patterns in one app, in one thread and in virtual time.

The app's clients are the official ones. Below them a store, a queue and a memcached live in this
process (`channel.py`, `memcached.py`), so a schedule takes milliseconds and a seed plays the same
one each time. `test_store.py` compares the store with both emulators.
"""
