"""Plant bugs in a package, one at a time, and see which of them its tests find.

    make mutants NAMES=fork_join            a sample of 40 bugs
    make mutants NAMES="outbox views" MOST=0 all of them; takes hours

cosmic-ray makes the bugs and runs the tests; this picks which of both, in a copy of the tree, and
says what survived, as a diff. Not planted, as they are no bugs: other types in annotations, which
nothing reads, another sign for the `*` of a signature, and a number of tuning (a constant of a
module) that is off by one.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkItem, WorkResult

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".dev", "__pycache__", "*.sqlite", ".*_cache")


@dataclass(frozen=True)
class Package:
    """Modules, and the tests that belong to them, the quickest first."""

    modules: Sequence[str]
    tests: Sequence[str]


PIPELINES, TESTS = "pipelines", "tests/pipelines"
PACKAGES = {
    "models": Package(
        ["models/*"],
        [
            "tests/models",
            f"{TESTS}/test_[wo]*",
            f"{TESTS}/test_[cm]*s.py",
            f"{TESTS}/test_fork_join.py",
        ],
    ),
    "outbox": Package(
        [f"{PIPELINES}/outbox.py", f"{PIPELINES}/tasks.py", f"{PIPELINES}/dead_tasks.py"],
        [f"{TESTS}/test_tasks.py", f"{TESTS}/test_dead_tasks.py", f"{TESTS}/test_outbox*"],
    ),
    "continuations": Package(
        [f"{PIPELINES}/{name}.py" for name in ("pages", "continuations", "progress", "jobs")],
        [f"{TESTS}/test_continuations*", f"{TESTS}/test_two_faults.py"],
    ),
    "fork_join": Package(
        [f"{PIPELINES}/{name}.py" for name in ("fork_join*", "epochs", "group_commit")],
        [f"{TESTS}/test_group_commit.py", f"{TESTS}/test_fork_join*", f"{TESTS}/test_accum*"],
    ),
    "views": Package(
        [f"{PIPELINES}/materialized_views.py", f"{PIPELINES}/view_*"],
        [f"{TESTS}/test_materialized_views.py", f"{TESTS}/test_*view*"],
    ),
    "engine": Package(
        ["devserver/cloudtasks/engine.py"],
        ["tests/devserver/test_cloudtasks_*", "tests/contracts"],
    ),
}


def main() -> int:
    """Plant bugs in the packages that are named; 1 when one of them has too many survivors."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="+", choices=sorted(PACKAGES))
    parser.add_argument("--most", type=int, default=40, help="bugs a package; 0: all")
    parser.add_argument("--seed", type=int, default=1, help="which bugs are in the sample")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for the tests of a bug")
    args = parser.parse_args()
    for name in args.names:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            tree = Path(folder) / "tree"
            shutil.copytree(ROOT, tree, ignore=NOT_COPIED)
            _plant(name, PACKAGES[name], tree, args)
    return 0


def _plant(name: str, package: Package, tree: Path, args: argparse.Namespace) -> None:
    modules = [str(path.relative_to(tree)) for path in _found(tree, package.modules)]
    tests = [str(path.relative_to(tree)) for path in _found(tree, package.tests)]
    config, session = tree / "mutants.toml", tree / "mutants.sqlite"
    pytest = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-k", "not firestore"]
    command = shlex.join([str(PYTHON), *pytest, *tests])
    config.write_text(
        f"[cosmic-ray]\nmodule-path = {json.dumps(modules)}\ntimeout = {args.timeout}\n"
        f'excluded-modules = []\ntest-command = "{command}"\n'
        '[cosmic-ray.distributor]\nname = "local"\n'
    )
    began_s = time.monotonic()
    if subprocess.run(shlex.split(command), cwd=tree, check=False).returncode:
        sys.exit(f"{name}: its tests fail without a planted bug")
    print(f"{name}: its tests take {time.monotonic() - began_s:.0f} s", flush=True)
    tool = Path(sys.executable).parent / "cosmic-ray"
    subprocess.run([tool, "init", config, session], cwd=tree, check=True)
    with use_db(str(session)) as db:
        picked = _pick(db, tree, args.most, args.seed)
    print(f"{name}: planting {picked} bugs", flush=True)
    subprocess.run([tool, "exec", config, session], cwd=tree, check=True)
    with use_db(str(session)) as db:
        _report(name, db)


def _found(tree: Path, patterns: Sequence[str]) -> list[Path]:
    found = [path for pattern in patterns for path in sorted(tree.glob(pattern))]
    return list(dict.fromkeys(path for path in found if path.name != "__init__.py"))


def _pick(db: WorkDB, tree: Path, most: int, seed: int) -> int:
    """Leave a sample of the bugs to be planted; return how many."""
    items = sorted(db.pending_work_items, key=lambda item: str(item.mutations))
    bugs = [item for item in items if _is_bug(item, tree)]
    random.Random(seed).shuffle(bugs)
    picked = {item.job_id for item in (bugs[:most] if most else bugs)}
    for item in items:
        if item.job_id not in picked:
            db.set_result(item.job_id, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
    return len(picked)


def _is_bug(item: WorkItem, tree: Path) -> bool:
    mutation = item.mutations[0]
    line = (tree / mutation.module_path).read_text().splitlines()[mutation.start_pos[0] - 1]
    is_annotation = "BitOr" in mutation.operator_name
    is_signature = line.strip() == "*,"  # It begins the keyword arguments, and multiplies nothing.
    is_tuning = "NumberReplacer" in mutation.operator_name and not mutation.definition_name
    return not is_annotation and not is_signature and not is_tuning


def _report(name: str, db: WorkDB) -> None:
    results = [
        result for _, result in db.results if result.worker_outcome is not WorkerOutcome.SKIPPED
    ]
    survived = [result for result in results if result.test_outcome is TestOutcome.SURVIVED]
    for result in survived:
        print(f"\nsurvived:\n{result.diff}")
    found = len(results) - len(survived)
    print(f"\n{name}: {found} of {len(results)} planted bugs found, {found / len(results):.0%}")


if __name__ == "__main__":
    sys.exit(main())
