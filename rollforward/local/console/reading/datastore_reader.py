"""The console's own connection to Datastore: it reads the app's rows, past the app."""

import os
import threading
from typing import Any

from google.api_core.retry import Retry
from google.auth.credentials import AnonymousCredentials
from google.cloud import datastore

# None would mean the client's own: it tries for a minute, and the page would wait.
_ONCE = Retry(predicate=lambda error: False)
CALL_OPTIONS = {"timeout": 5.0, "retry": _ONCE}
# Of a query for a whole kind, which no page waits for (slow_reads.py).
SCAN_OPTIONS = {"timeout": 60.0, "retry": _ONCE}


class DatastoreReader:
    """A client of the Datastore at its present address."""

    def __init__(self, project: str, database: str = "") -> None:
        """Describe the connection; it is made when first used."""
        self.project = project
        self.database = database
        self._lock = threading.Lock()
        self._client: Any = None
        self._address = ""

    def client(self, address: str) -> Any:
        """Return the client for an address."""
        with self._lock:
            if self._client is None or self._address != address:
                # The client refuses credentials when the variable is set, and looks
                # for real ones when it is not.
                inherits = bool(os.environ.get("DATASTORE_EMULATOR_HOST"))
                credentials = None if inherits else AnonymousCredentials()
                self._client = datastore.Client(
                    project=self.project, database=self.database or None, credentials=credentials
                )
                self._client.base_url = f"http://{address}"
                self._address = address
            return self._client

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None
