"""gunicorn for an app: its configuration, and a worker that slow callers cannot stop.

    gunicorn --config python:rollforward.gunicorn.config --threads 32 shop:serve

- config: the hooks around a worker's start and end, and the arguments that it refuses.
- worker: gives threads to whole requests only.

A configuration of your own begins with `from rollforward.gunicorn.config import *` and calls the
hooks that it replaces. gunicorn's master imports this package once, so it imports nothing else of
the library: a reload (SIGHUP) loads all the rest as it is then.
"""
