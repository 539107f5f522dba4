"""Execution: runs the hooks of one bundle of records as a pure function, without services.

`bundle_runner` fires due timers and processes records, `hook_backend` keeps the keys at work and
what their hooks did, and `quarantine` turns a record or timer that kills its workers into a dead
letter.

Below: `graph`, `model`, `storage`. Above: `workers`, `exchange` (weak computations run inline) and
`StreamTest`, which call it.
"""
