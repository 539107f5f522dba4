"""The versions of the API, each loaded with the first call that asks for it, but for v2."""

import functools

from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.server import methods
from rollforward.local.cloudtasks.server.methods import Methods

NAMES = ("v2", "v2beta3")
_BETA3_SERVICE = "google.cloud.tasks.v2beta3.CloudTasks"


class Versions:
    """The methods of one engine, by version and by service."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._services = methods.services(engine)
        self._v2 = {
            name: method for part in self._services.values() for name, method in part.items()
        }

    def of(self, version: str) -> Methods:
        """Return all methods of a version, none of an unknown one."""
        if version == "v2":
            return self._v2
        return self._beta3 if version == "v2beta3" else {}

    def service(self, name: str) -> Methods:
        """Return the methods of a service of gRPC, none of an unknown one."""
        return self._beta3 if name == _BETA3_SERVICE else self._services.get(name, {})

    @functools.cached_property
    def _beta3(self) -> Methods:
        # Few callers need its messages, which take a while to load.
        from rollforward.local.cloudtasks.server import beta3

        return beta3.methods(self._engine, self._v2)
