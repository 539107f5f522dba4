"""Storage: the rows of a pipeline, their JSON and caches, and remote calls as values.

Workers, ticks and sources are generators that yield the calls of `remote_calls`, so that the
simulator of the tests runs the shipped code. `schema` names rows and declares their fields, `serde`
serializes them. `state_store`, `inbox` and `dedup` are an interval's keyed states, its incoming
records, and the ids that it has accepted.

Below: `model`. Above: all other rooms.
"""
