"""Marks of tests that need an emulator: skipped where it is not installed, but never in CI."""

import os

import pytest

from rollforward.local.services import sdk


def _needs(kind: str, emulator: str) -> pytest.MarkDecorator:
    is_missing = sdk.find_jar(emulator) is None and not os.environ.get("CI")
    return pytest.mark.skipif(is_missing, reason=f"the {kind} emulator is not installed")


NEEDS_DATASTORE = _needs("datastore", sdk.DATASTORE)
KINDS = [pytest.param(kind, marks=_needs(kind, name)) for kind, name in sdk.EMULATORS.items()]
