"""Everything that a pipeline reaches outside of its code, in one frozen dataclass: `Clients`.

It is opened once per process, after the fork (gRPC does not survive one), and passed down. Tests
replace every field.

Rooms: `channel` has the interceptors of gRPC, `process` the memory and the siblings of a process,
`sweeps` the rounds of sweeps.
"""

from rollforward.runtime.cache import Cache, NoCache, open_cache
from rollforward.runtime.channel.rpc import Cost, Meter
from rollforward.runtime.clients import Clients, open_cloud_tasks, open_datastore
from rollforward.runtime.clock import Clock, SystemClock, naive_utc
from rollforward.runtime.flusher import PeriodicFlusher

__all__ = [
    "Cache",
    "Clients",
    "Clock",
    "Cost",
    "Meter",
    "NoCache",
    "PeriodicFlusher",
    "SystemClock",
    "naive_utc",
    "open_cache",
    "open_cloud_tasks",
    "open_datastore",
]
