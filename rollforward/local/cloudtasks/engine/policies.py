"""The IAM policies of queues and the keys of locations, as serialized messages."""

from rollforward.local.cloudtasks.engine.engine_state import EngineState


class Policies:
    """Serialized messages by resource; each public method is one transaction of the store."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def get(self, kind: str, resource: str) -> bytes:
        """Return a serialized message, empty if none was stored."""
        with self._state.lock:
            message: bytes | None = self._state.store.meta(f"{kind} {resource}")
            return message or b""

    def put(self, kind: str, resource: str, message: bytes) -> None:
        """Keep a serialized message; an empty one deletes it."""
        with self._state.change():
            self._state.store.set_meta(f"{kind} {resource}", message)
