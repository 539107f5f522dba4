"""Audits: risky code says why it is there, and all that is installed is looked up."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.infra.documents import ROOT, text_of
from tests.infra.runs import sampling

RECIPES = re.findall(r"^\t@?(\$\(VENV\)/bin/(?:bandit|pip-audit) .*)$", text_of("Makefile"), re.M)
BANDIT = [line for line in RECIPES if "bandit" in line]
# Neither comes with a release of ours: the one installs the others, the other came with Python.
TOOLS = {"pip", "setuptools"}


@sampling.long
@pytest.mark.parametrize("recipe", BANDIT)
def test_no_code_is_risky_unless_it_says_why(recipe: str) -> None:
    """S32: what `make audit` runs first ends well."""
    words = shlex.split(recipe.replace("$(VENV)/bin/bandit", "-m bandit"))

    ended = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)

    assert ended.returncode == 0, ended.stdout


def test_what_is_installed_is_what_is_audited() -> None:
    """S31: each package is pinned in the file that pip-audit reads, at the version that runs."""
    audited = {name: version for name, version in _pinned().items() if name not in TOOLS}
    installed = {
        canonicalize_name(found.metadata["Name"]): found.version
        for found in importlib.metadata.distributions()
    }

    assert {name: installed[name] for name in installed if name not in TOOLS} == audited


def test_an_audit_cannot_pass_over_what_it_could_not_look_up() -> None:
    """S31: a package without advisories, or a requirement without a hash, is a failure."""
    [recipe] = [line for line in RECIPES if "pip-audit" in line]

    assert {"--strict", "--require-hashes", "-r", "requirements-dev.txt"} <= set(recipe.split())
    assert "exit 1" in text_of("Makefile").partition(recipe)[2].partition("\n\n")[0]


def _pinned() -> dict[str, str]:
    """Return the version of each package that this Python is to have."""
    lines = text_of("requirements-dev.txt").replace("\\\n", " ").splitlines()
    found = [Requirement(line.partition("--hash")[0]) for line in lines if line[:1].isalnum()]
    return {
        canonicalize_name(each.name): str(each.specifier).removeprefix("==")
        for each in found
        if each.marker is None or each.marker.evaluate()
    }
