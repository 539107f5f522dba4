"""The number of open dead tasks, for the first page; the app's own console shows them."""

import asyncio

from google.cloud.datastore.query import PropertyFilter

from rollforward.local.console.reading.datastore_reader import CALL_OPTIONS, DatastoreReader

KIND = "DeadTask"
MAX_COUNTED = 1000


class DeadTasks:
    """Counts dead tasks in the emulator."""

    def __init__(self, reader: DatastoreReader) -> None:
        """Read through this connection."""
        self._reader = reader

    async def count(self, address: str) -> int:
        """Return how many dead tasks are open in the Datastore at this address, up to 1,000.

        Raises:
            google.api_core.exceptions.GoogleAPIError: it does not answer.
        """
        return await asyncio.to_thread(self._count, address)

    def _count(self, address: str) -> int:
        query = self._reader.client(address).query(kind=KIND)
        query.add_filter(filter=PropertyFilter("resolved", "=", False))
        query.keys_only()
        return sum(1 for _ in query.fetch(limit=MAX_COUNTED, **CALL_OPTIONS))
