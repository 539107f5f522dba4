"""The registry of a target, without opening anything remote."""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path
from typing import Any

from rollforward.cli.errors import CliError, WrongUsageError
from rollforward.flask.opening import KEY
from rollforward.local.app.wsgi import MIDDLEWARE, needs_arguments
from rollforward.registry import Registry


def registry_of(target: str, root: Path) -> Registry:
    """Import a target's module and return the registry of its app.

    The target is a Flask app, a Registry, or a function that returns a Flask app. A function is
    called, unless its module has one Registry at its top level, which is then taken.

    Raises:
        WrongUsageError: the target names no app on Rollforward.
        CliError: its code fails.
    """
    module_name, _, name = target.removesuffix("()").partition(":")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    try:
        with contextlib.redirect_stdout(sys.stderr):  # Standard output is for the result.
            module = importlib.import_module(module_name)
            served = getattr(module, name, None)
            if callable(served) and not hasattr(served, "wsgi_app"):
                registries = _registries(module)
                if len(registries) == 1:
                    served = registries[0]
                elif not needs_arguments(served):
                    served = served()
    except (Exception, SystemExit) as error:
        raise CliError(
            f"{target} cannot be loaded: {type(error).__name__}: {error}. If it opens its clients, "
            "name the app's registry instead: module:REGISTRY."
        ) from error
    registry = _registry_in(served)
    if registry is None:
        raise WrongUsageError(
            f"{target} is no app on Rollforward: it is {served!r:.80}. Name what rf.serve(...) "
            f"returned, or a Registry. {MIDDLEWARE}"
        )
    return registry


def _registries(module: Any) -> list[Registry]:
    values = vars(module).values()
    return list({id(value): value for value in values if isinstance(value, Registry)}.values())


def _registry_in(served: Any) -> Registry | None:
    if isinstance(served, Registry):
        return served
    extensions = getattr(served, "extensions", {})
    opening = extensions.get(KEY) or extensions.get("wiring")
    registry = getattr(opening, "registry", None)
    return registry if isinstance(registry, Registry) else None
