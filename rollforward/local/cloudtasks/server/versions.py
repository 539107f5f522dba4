"""The versions of the API, each loaded with the first call that asks for it, but for v2."""

import functools

from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.server import methods
from rollforward.local.cloudtasks.server.methods import Methods

NAMES = ("v2", "v2beta3", "v2beta2")


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
        if version == "v2beta3":
            return self._beta3
        return self._beta2 if version == "v2beta2" else {}

    def service(self, name: str) -> Methods:
        """Return the methods of a service of gRPC, none of an unknown one."""
        if name in self._services:
            return self._services[name]
        version = name.removeprefix("google.cloud.tasks.").removesuffix(".CloudTasks")
        return self.of(version) if name == f"google.cloud.tasks.{version}.CloudTasks" else {}

    @functools.cached_property
    def _beta3(self) -> Methods:
        # Few callers need its messages, which take a while to load.
        from rollforward.local.cloudtasks.server import beta3

        return beta3.methods(self._engine, self._v2)

    @functools.cached_property
    def _beta2(self) -> Methods:
        from rollforward.local.cloudtasks.server import beta2

        return beta2.methods(self._engine, self._v2)
