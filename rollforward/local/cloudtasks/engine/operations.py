"""Long-running operations, as they are kept: serialized, each under its name."""

from rollforward.local.cloudtasks.engine.engine_state import EngineState


class Operations:
    """The operations of one engine; each public method is one transaction of the store."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def get(self, name: str) -> bytes | None:
        """Return a serialized operation, None if there is none of this name."""
        with self._state.lock:
            return self._state.store.operations.get(name)

    def all(self) -> list[bytes]:
        """Return all serialized operations, oldest first."""
        with self._state.lock:
            return self._state.store.operations.all()

    def put(self, name: str, message: bytes) -> None:
        """Keep a serialized operation."""
        with self._state.change():
            self._state.store.operations.put(name, self._state.clock.now(), message)

    def delete(self, name: str) -> None:
        """Forget an operation."""
        with self._state.change():
            self._state.store.operations.delete(name)
