"""What a pipeline may reach outside the process, in one frozen dataclass.

Opened once per process, after the fork (gRPC does not survive one), and passed down.
Tests own every field.
"""

from pipelines.runtime.cache import Cache, NoCache, open_cache
from pipelines.runtime.clients import Clients, open_cloud_tasks, open_datastore
from pipelines.runtime.clock import Clock, SystemClock, naive_utc
from pipelines.runtime.flusher import PeriodicFlusher
from pipelines.runtime.rpc import Cost, Meter

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
