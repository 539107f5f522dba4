"""Plant bugs in a package, one at a time, and see which of them its tests find.

    make mutants NAMES=fork_join             a sample of 40 bugs
    make mutants NAMES="outbox views" MOST=0 all of them; takes hours

cosmic-ray makes the bugs; this picks which, in a copy of the tree, and runs those tests of the
package that reach the planted line, the quickest first, until one fails. A bug that no test reaches
survives at once. The packages are in `planted.py`. A test that runs on both emulators runs on that
of Datastore, which is quicker. What survived is shown as a diff when it happens, and noted in
.dev/mutants; with `--again` only that is planted.

A sample has one bug a place. Not planted is what is no bug, or one that nobody could miss: what
does not compile, an operator of another kind (a time is not shifted), other types in annotations
and overloads, which nothing reads, dataclasses that are not frozen, a signature without its `*`, a
`zip` that is not strict, other words in the log, and a number of tuning (a constant of a module)
that is off by one.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import hashlib
import itertools
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cosmic_ray.plugins
from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_code, use_mutation
from cosmic_ray.operators.exception_replacer import ExceptionReplacer
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec

from tests.infra.mutation.planted import PACKAGES, named

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".venv" / "bin" / "python"
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".dev", "__pycache__", "*.sqlite", ".*_cache")
NOTES = ROOT / ".dev" / "mutants"
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider")
# Tests of a planted bug that take so much longer than without it hang.
PATIENCE = 3
START_S = 10
# For a bug the quickest tests are run, so many seconds of them: those of the clean run.
MAX_S = 90
# Operators that stand for each other.
ALIKE = (
    {"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod"},
    {"Pow", "Mul"},
    {"BitAnd", "BitXor", "LShift", "RShift"},
    {"Lt", "LtE", "Gt", "GtE", "Eq", "NotEq"},
    {"Is", "IsNot"},
    {"In", "NotIn"},  # codespell:ignore notin
)


@dataclass(frozen=True)
class Bug:
    """A bug to be planted, and the tests that could find it: the quickest first."""

    mutation: MutationSpec
    tests: Mapping[str, float]  # And how many seconds each may take.

    @property
    def id(self) -> str:
        spec = self.mutation
        return f"{spec.module_path}:{spec.start_pos[0]} {spec.operator_name} {spec.occurrence}"


@dataclass(frozen=True)
class Seen:
    """The fate of a planted bug; `found_by` is empty if it survived."""

    bug: Bug
    diff: str
    found_by: str
    seconds: float


def main() -> int:
    """Plant bugs in the packages that are named, and tell which were not found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="+", choices=sorted(PACKAGES))
    parser.add_argument("--most", type=int, default=40, help="bugs a package; 0: all")
    parser.add_argument("--seed", type=int, default=1, help="which bugs are in the sample")
    parser.add_argument("--jobs", type=int, default=1, help="bugs at a time, each in its own tree")
    parser.add_argument("--again", action="store_true", help="only what survived the last time")
    args = parser.parse_args()
    ExceptionReplacer._name_nodes = staticmethod(_caught)
    for name in args.names:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder, _emulators():
            trees = [Path(folder) / f"tree{i}" for i in range(args.jobs)]
            for tree in trees:
                shutil.copytree(ROOT, tree, ignore=NOT_COPIED)
            _plant_some(name, trees, args)
    return 0


@contextlib.contextmanager
def _emulators() -> Iterator[None]:
    """Run one emulator of each kind for all bugs: its start takes longer than most tests."""
    with _emulator("datastore") as address, _emulator("firestore") as locking:
        os.environ.update(TEST_DATASTORE_EMULATOR=address, TEST_FIRESTORE_EMULATOR=locking)
        yield


@contextlib.contextmanager
def _emulator(kind: str) -> Iterator[str]:
    run = (
        "from rollforward.local.services.standalone import datastore_emulator as emulator\n"
        f"with emulator({kind!r}) as address: print(address, flush=True), input()"
    )
    with subprocess.Popen(
        [PYTHON, "-c", run], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate("\n")


def _plant_some(name: str, trees: Sequence[Path], args: argparse.Namespace) -> None:
    notes = NOTES / f"{name}.json"
    modules = named(trees[0], PACKAGES[name].modules)
    reached = _reached(name, trees[0], modules)
    bugs = _pick(trees[0], modules, reached, args.most, args.seed)
    if args.again:
        survived = json.loads(notes.read_text())
        bugs = [bug for bug in bugs if bug.id in survived]
    print(f"{name}: planting {len(bugs)} bugs", flush=True)
    seen = []
    for each in _plant_each(bugs, trees):
        seen.append(each)
        found = f"found by {each.found_by}" if each.found_by else f"SURVIVED\n{each.diff}"
        print(f"{len(seen)}. {each.bug.id}, {each.seconds:.0f} s: {found}", flush=True)
    left = [each.bug.id for each in seen if not each.found_by]
    notes.write_text(json.dumps(left, indent=1))
    share = (len(seen) - len(left)) / max(1, len(seen))
    print(f"\n{name}: {len(seen) - len(left)} of {len(seen)} planted bugs found, {share:.0%}")


def _reached(name: str, tree: Path, modules: Sequence[str]) -> dict[str, Any]:
    """Return what each test of a package reaches (`line_coverage.py`), by a run without a bug.

    What an earlier run has told is good as long as modules and tests are the same.
    """
    tests = named(tree, PACKAGES[name].tests)
    texts = b"".join(file.read_bytes() for file in _files(tree, [*modules, *tests]))
    answer = NOTES / f"{name}.{hashlib.sha256(texts).hexdigest()[:12]}.json"
    if not answer.exists():
        NOTES.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "REACHED": str(answer), "REACHED_MODULES": ":".join(modules)}
        picked = " and ".join(f"not {test}" for test in PACKAGES[name].slow)
        plugin = "tests.infra.mutation.line_coverage"
        options = [*OPTIONS, "-p", plugin, "--timeout=0", "-k", picked]
        began_s = time.monotonic()
        command = [PYTHON, "-m", "pytest", *options, *tests]
        if subprocess.run(command, cwd=tree, env=env, check=False).returncode:
            answer.unlink(missing_ok=True)
            sys.exit(f"{name}: its tests fail without a planted bug")
        print(f"{name}: its tests take {time.monotonic() - began_s:.0f} s", flush=True)
    told: dict[str, Any] = json.loads(answer.read_text())
    return told


def _files(tree: Path, paths: Sequence[str]) -> Iterator[Path]:
    for path in paths:
        yield from sorted((tree / path).rglob("*.py")) if (tree / path).is_dir() else [tree / path]


# Which bugs


def _pick(
    tree: Path, modules: Sequence[str], reached: dict[str, Any], most: int, seed: int
) -> list[Bug]:
    """Return a sample of the bugs that can be planted, each with its tests."""
    with contextlib.chdir(tree), use_db(str(tree / "mutants.sqlite")) as db:
        init([Path(module) for module in modules], db, {})
        mutations = [item.mutations[0] for item in db.work_items]
    sources = {module: _Source((tree / module).read_text()) for module in modules}
    mutations.sort(key=str)
    random.Random(seed).shuffle(mutations)
    bugs: list[Bug] = []
    places: set[object] = set()
    for each in mutations:
        source = sources[str(each.module_path)]
        place = (each.module_path, each.start_pos)
        if (most and place in places) or not source.is_bug(each):
            continue
        places.add(place)
        bugs.append(_bug(each, source, reached))
        if len(bugs) == most:
            break
    return bugs


def _bug(mutation: MutationSpec, source: _Source, reached: dict[str, Any]) -> Bug:
    module, lines = str(mutation.module_path), source.statement(mutation.start_pos[0])
    at_import = set(reached.get("", {"lines": {}})["lines"].get(module, ()))
    is_imported = not lines.isdisjoint(at_import)
    took_s = {
        test: told["seconds"]
        for test, told in reached.items()
        if test and (is_imported or not lines.isdisjoint(told["lines"].get(module, ())))
    }
    # One emulator is enough, and the one that locks is slower; but some tests run on no other.
    twins = {test.replace("datastore", "firestore") for test in took_s if "datastore" in test}
    tests = sorted(took_s.keys() - twins, key=lambda test: took_s[test])
    spent_s = itertools.accumulate(took_s[test] for test in tests)
    quick = [test for test, until_s in zip(tests, spent_s, strict=True) if until_s <= MAX_S]
    return Bug(mutation, {test: START_S + PATIENCE * took_s[test] for test in quick or tests[:1]})


class _Source:
    """The statements of a module."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = text.splitlines()
        nodes = list(ast.walk(ast.parse(text)))
        self._statements = [node for node in nodes if isinstance(node, ast.stmt)]
        self._overloads = {
            line
            for node in nodes
            if isinstance(node, ast.FunctionDef) and _is_overload(node)
            for line in range(node.decorator_list[0].lineno, (node.end_lineno or 0) + 1)
        }

    def statement(self, line: int) -> set[int]:
        """Return the lines of the statement that a line belongs to; of a long one, of its head."""
        node = self._innermost(line)
        body = getattr(node, "body", None)
        return set(range(node.lineno, body[0].lineno if body else (node.end_lineno or line) + 1))

    def _innermost(self, line: int) -> ast.stmt:
        around = [
            node for node in self._statements if node.lineno <= line <= (node.end_lineno or line)
        ]
        return max(around, key=lambda node: node.lineno, default=self._statements[0])

    def is_bug(self, mutation: MutationSpec) -> bool:
        line = mutation.start_pos[0]
        statement = ast.unparse(self._innermost(line))
        is_tuning = "NumberReplacer" in mutation.operator_name and not mutation.definition_name
        is_frozen = "frozen=True" in self._lines[line - 1]
        is_signature = self._lines[line - 1][mutation.start_pos[1] :].startswith("*,")
        is_said = statement.startswith(("log.", "if TYPE_CHECKING"))
        is_zip = "zip(" in statement and "True" in mutation.operator_name
        is_harmless = is_tuning or is_frozen or is_signature or is_said or is_zip
        is_harmless = is_harmless or line in self._overloads
        is_bug = _is_alike(mutation.operator_name) and not is_harmless
        return is_bug and self._compiles(mutation)

    def _compiles(self, mutation: MutationSpec) -> bool:
        code = mutate_code(self._text, _operator(mutation), mutation.occurrence)
        try:
            compile(code or "", "mutant", "exec")
        except SyntaxError:
            return False
        return True


def _is_overload(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator) == "overload" for decorator in function.decorator_list)


def _is_alike(operator: str) -> bool:
    """Return whether an operator is replaced by one of its kind; `|` is of annotations, mostly."""
    match = re.fullmatch(r"core/Replace(?:Binary|Comparison)Operator_(\w+)_(\w+)", operator)
    return match is None or any(kind.issuperset(match.groups()) for kind in ALIKE)


def _caught(clause: Any) -> list[Any]:
    """Return the plain names of an `except`: over a sum of tuples cosmic-ray itself breaks."""
    caught = clause.children[1]
    if caught.type == "atom":
        caught = caught.children[1]
    parts = caught.children[::2] if caught.type == "testlist_comp" else [caught]
    return [part for part in parts if part.type == "name"]


def _operator(mutation: MutationSpec) -> Any:
    return cosmic_ray.plugins.get_operator(mutation.operator_name)(**mutation.operator_args)


# Planting


def _plant_each(bugs: Sequence[Bug], trees: Sequence[Path]) -> Iterator[Seen]:
    free: queue.SimpleQueue[_Tree] = queue.SimpleQueue()
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(len(trees)) as pool:
        for tree in trees:
            free.put(_Tree(tree, stack.enter_context(_forks())))

        def plant(bug: Bug) -> Seen:
            tree = free.get()
            try:
                return tree.plant(bug)
            finally:
                free.put(tree)

        for done in as_completed([pool.submit(plant, bug) for bug in bugs]):
            yield done.result()


@contextlib.contextmanager
def _forks() -> Iterator[subprocess.Popen[str]]:
    """Start what runs tests without loading the libraries each time."""
    command = [PYTHON, Path(__file__).with_name("fork_server.py")]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as forks:
        yield forks
        forks.communicate()


@dataclass(frozen=True)
class _Tree:
    """A copy of the tree, and who runs tests in it."""

    path: Path
    forks: subprocess.Popen[str]

    def plant(self, bug: Bug) -> Seen:
        """Run the tests with a bug in the tree."""
        spec, began_s = bug.mutation, time.monotonic()
        path = self.path / spec.module_path
        with use_mutation(path, _operator(spec), spec.occurrence) as (before, after):
            found_by = self._first_failure(bug)
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=2, lineterm="")
        return Seen(bug, "\n".join([*lines][2:]), found_by, time.monotonic() - began_s)

    def _first_failure(self, bug: Bug) -> str:
        """Return the first test that fails, or what else happened; nothing if all pass."""
        if not bug.tests:
            return ""
        told = self._run(bug.tests)
        if told["code"] is None:
            return "its patience"
        if not told["code"]:
            return ""
        lines = told["output"].splitlines()
        failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        return failed[0].split(" - ")[0].rpartition("::")[2] if failed else "an import"

    def _run(self, tests: Mapping[str, float]) -> dict[str, Any]:
        assert self.forks.stdin is not None
        assert self.forks.stdout is not None
        run = {"folder": str(self.path), "options": [*OPTIONS, "--tb=no"], "tests": tests}
        self.forks.stdin.write(json.dumps(run) + "\n")
        self.forks.stdin.flush()
        told: dict[str, Any] = json.loads(self.forks.stdout.readline())
        return told


if __name__ == "__main__":
    sys.exit(main())
