"""Types and the fast tests on other Pythons, and with the lowest releases that ranges allow.

    python -m tests.infra.pythons fast            # on each Python that is here, but for this one
    python -m tests.infra.pythons fast lowest     # with the lowest releases
    python -m tests.infra.pythons interpreter 3.13  # prints where its environment has Python

The versions are those of pyproject.toml. Each has an environment `.venv/python<version>`, which uv
fills from the pins when they have changed. A version that is not on this machine is named and
skipped.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv"
LOWEST = "lowest"
# With the lowest releases: on Python 3.11 Google's libraries of that age warn of its end.
LOWEST_PYTHON = "3.12"
# The day of a week, by the seed, on which the whole suite runs on the newest Python; and the one
# on which the lowest releases are tested.
NEWEST_ON, LOWEST_ON = 0, 3
# They read documents and sources, which are the same for each Python.
OF_NO_PYTHON = ("tests/documents", "tests/test_docs.py", "tests/test_house_rules.py")
COMMANDS = ("fast", "interpreter", "of-the-day", "other-of-the-day", "versions")
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


def versions() -> list[str]:
    """Return the versions that the project promises to run on, the newest last."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    words = [line.rpartition(" ")[2] for line in project["classifiers"] if ":: Python ::" in line]
    return sorted((word for word in words if "." in word), key=lambda word: int(word[2:]))


def find(version: str) -> Path | None:
    """Return an interpreter of this machine: on the path, or one of pyenv's."""
    if version == RUNNING:
        return Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = shutil.which(f"python{version}")
    candidates = [Path(on_path)] if on_path else []
    candidates += sorted(pyenv.glob(f"versions/{version}*/bin/python{version}"), reverse=True)
    # pyenv leaves a script on the path for each version that it has; not each of them runs.
    return next((path for path in candidates if _is_version(path, version)), None)


def _is_version(path: Path, version: str) -> bool:
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([str(path), "-c", program], capture_output=True, text=True)
    return done.stdout.strip() == version


def environment(name: str) -> Path | None:
    """Return the interpreter of an environment, made or brought up to date; None: no Python."""
    version, lock = name, ROOT / "requirements-dev.txt"
    if name == LOWEST:
        version, lock = LOWEST_PYTHON, ROOT / "requirements-lowest.txt"
    elif name == RUNNING:
        return Path(sys.executable)
    base = find(version)
    if base is None:
        return None
    folder = VENV / (LOWEST if name == LOWEST else f"python{name}")
    python, pins = folder / "bin/python", folder / "pins.txt"
    if not pins.exists() or pins.read_bytes() != lock.read_bytes():
        uv = str(VENV / "bin/uv")
        make = [uv, "venv", "-q", "--clear", "--python", str(base), str(folder)]
        fill = [uv, "pip", "sync", "-q", "--require-hashes", "--python", str(python), str(lock)]
        for command in (make, fill):
            subprocess.run(command, check=True)
        if (archives := Path(sys.prefix) / "class-data").exists():  # Of the emulators' classes.
            (folder / "class-data").symlink_to(archives)
        shutil.copyfile(lock, pins)
    return python


def chosen(names: list[str], seed: int) -> list[str]:
    """Return the environments of a run; without names, all Pythons but the day's."""
    if names:
        return names
    return [version for version in versions() if version != of_the_day(seed)]


def of_the_day(seed: int) -> str:
    """Return the Python that `make check` runs the whole suite on."""
    newest = versions()[-1]
    return newest if seed % 7 == NEWEST_ON and find(newest) else RUNNING


def other_of_the_day(seed: int) -> str:
    """Return the environment that `make check` runs the fast tests of, beside the whole suite.

    >>> {other_of_the_day(day) for day in range(14)} | {RUNNING} == {*versions(), LOWEST}
    True
    """
    if seed % 7 == LOWEST_ON:
        return LOWEST
    others = [version for version in versions() if version != of_the_day(seed)]
    return others[seed % len(others)]


def run_fast(names: list[str], seed: int) -> int:
    """Check types and run the fast tests of each environment; return how many had a failure.

    The tests are drawn as by `make test`.
    """
    drawn = {**os.environ, "SAMPLED": "1", "SAMPLE_SEED": str(seed)}
    failed = 0
    for name in names:
        began = time.monotonic()
        python = environment(name)
        if python is None:
            print(f"Python {name}: SKIPPED, it is not on this machine (looked for python{name})")
            continue
        print(f"Python {name}: the fast tests, with {python}", flush=True)
        if name not in (LOWEST, versions()[0]):  # `make types` has checked for the lowest Python.
            command = [sys.executable, "-m", "mypy", "--python-version", name]
            failed += bool(subprocess.run(command, cwd=ROOT).returncode)
        command = [str(python), "-m", "pytest", "-q", "-m", "fast", "-p", "no:cacheprovider"]
        command += [f"--ignore={path}" for path in OF_NO_PYTHON]
        # A worker that crashes ends the run: the one in its place waits for ever for tests.
        workers = ["-n", "2", "--max-worker-restart", "0", "--dist", "loadfile"]
        done = subprocess.run([*command, *workers], cwd=ROOT, env=drawn)
        failed += bool(done.returncode)
        print(f"Python {name}: {time.monotonic() - began:.0f} s in all", flush=True)
    return failed


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.infra.pythons", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("names", nargs="*", help="versions, or `lowest`")
    parser.add_argument("--seed", type=int, default=int(time.strftime("%j")))
    options = parser.parse_args()
    if options.command == "fast":
        return run_fast(chosen(options.names, options.seed), options.seed)
    if options.command == "versions":
        print(*versions())
    elif options.command == "of-the-day":
        print(of_the_day(options.seed))
    elif options.command == "other-of-the-day":
        print(other_of_the_day(options.seed))
    else:
        (name,) = options.names
        python = environment(name)
        if python is None:
            print(f"Python {name} is not on this machine", file=sys.stderr)
            return 1
        print(python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
