"""Modules that libraries import and this app seldom or never uses: loaded on first use.

ndb imports Redis for a cache that is off here, and Google's libraries import the key files of
service accounts, with their cryptography. pydantic is needed by the first task, and by few pages.
Together they take a fifth of the app's start. A module that is named here stays empty until
something is asked of it. From Python 3.15 on an import can say so itself (PEP 810).

Only whole imports (`import redis`) gain by it: `from redis import Redis` loads at once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:  # `importlib.abc` loads zipfile and tempfile, and importlib only calls the methods.
    Loader = MetaPathFinder = object

MODULES = (
    "redis",  # By google.cloud.ndb.global_cache; the app opens no global cache.
    "google.oauth2.service_account",  # Used where credentials are a key file.
    "pydantic",  # By what checks arguments and items; the first of them loads it.
    "pydantic_core",
)
# The packages of Google's client for Cloud Tasks. The emulator needs their `types` alone, and the
# client takes longer to load than all of the emulator. Only for a process that never calls it:
# its modules import each other in circles, which end only where the package is imported first.
CLOUD_TASKS = tuple(f"google.cloud.tasks_{version}" for version in ("v2", "v2beta2", "v2beta3"))
# What the import system itself looks at.
_OF_IMPORTS = {"__loader__", "__package__", "__spec__", "__path__", "__file__", "__cached__"}
_loading = threading.RLock()


class _LazyModule(ModuleType):
    """A module that is executed when it is first asked for something that it does not have.

    Threads that ask meanwhile wait. The one that executes it may ask, too, as it would of any
    module that is being imported.
    """

    def __getattr__(self, name: str) -> Any:
        if name in _OF_IMPORTS:
            raise AttributeError(name)
        with _loading:
            spec = self.__spec__
            if isinstance(spec, ModuleSpec) and isinstance(spec.loader, _LazyLoader):
                _execute(self, spec, spec.loader)
        if type(self) is ModuleType:
            return getattr(self, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} yet")


def _execute(module: _LazyModule, spec: ModuleSpec, lazy: _LazyLoader) -> None:
    spec.loader = module.__loader__ = lazy.loader
    try:
        lazy.loader.exec_module(module)
    except BaseException:
        spec.loader = module.__loader__ = lazy  # The next use tries again.
        raise
    module.__class__ = ModuleType  # type: ignore[assignment]


class _LazyLoader(Loader):
    """Executes nothing yet."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LazyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _LazyFinder(MetaPathFinder):
    """Finds modules by their names, before any other finder does."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = modules

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.modules:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LazyLoader(spec.loader)
        return spec


def install(modules: Sequence[str] = MODULES) -> None:
    """Load these modules on first use, from now on."""
    if not any(
        isinstance(finder, _LazyFinder) and finder.modules == modules for finder in sys.meta_path
    ):
        sys.meta_path.insert(0, _LazyFinder(modules))
