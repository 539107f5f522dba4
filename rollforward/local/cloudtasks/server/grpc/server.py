"""The server of gRPC: the quick one, or gRPC's own."""

import logging
from collections.abc import Callable

from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.server.grpc import threads
from rollforward.local.cloudtasks.server.versions import Versions

log = logging.getLogger(__name__)


def start(versions: Versions, engine: Engine) -> tuple[int, Callable[[], None]]:
    """Start a server with all services; return its port, and what stops it and waits for that."""
    try:
        from rollforward.local.cloudtasks.server.grpc import loop

        return loop.start(versions, engine)
    except (AttributeError, ImportError, TypeError) as error:
        log.warning("gRPC serves by its own server, which is slower: %s", error)
        return threads.start(versions, engine)
