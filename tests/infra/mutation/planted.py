"""The packages that `mutants.py` plants bugs in, and the tests that should find them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Package:
    """Modules, and the quick ones of the tests that belong to them.

    Left out are the plays with a fault at each call and the searches of all interleavings: a bug
    that only they could find survives here. So what is found is the least.
    """

    modules: Sequence[str]
    tests: Sequence[str]
    slow: Sequence[str] = ()  # Parts of the names of tests that take too long.


TESTS = "tests/rollforward"
# These know their lines by the text (`lines.py`): another text is no bug that they have noticed.
BY_TEXT = ("that_is_taken_out",)
DEEP = ("under_faults", "exhaustively", "schedules", *BY_TEXT)
EMULATOR_TESTS = ["tests/rollforward/local/cloudtasks/**/test_*.py", "tests/contracts"]


def named(tree: Path, patterns: Sequence[str]) -> list[str]:
    """Return the files and folders that some patterns name, doors aside, each once."""
    paths = [path for pattern in patterns for path in sorted(tree.glob(pattern))]
    kept = [path for path in paths if path.name not in ("__init__.py", "__pycache__")]
    return list(dict.fromkeys(str(path.relative_to(tree)) for path in kept))


def _in(folder: str, *names: str, start: str = "") -> list[str]:
    return [f"{folder}/{start}{name}.py" for name in names]


OUTBOX_TESTS = _in(
    f"{TESTS}/outbox",
    *("enqueue", "relay", "background_relay", "refused_rows", "sweep", "unacked_rows", "depth"),
    "parts_of_the_outbox",
    start="test_",
)
# How patterns are listed and looked at.
OF_RUNS = _in(f"{TESTS}/console/runs", "list_of_runs", "runs_of_patterns", start="test_")
PACKAGES = {
    "runtime": Package(
        ["rollforward/*.py", "rollforward/runtime/**/*.py"],
        [f"{TESTS}/runtime", *_in(TESTS, "registry", "mistakes", "front_door", start="test_")],
    ),
    "telemetry": Package(["rollforward/telemetry/*.py"], [f"{TESTS}/telemetry"]),
    "tracing": Package(["rollforward/tracing/*.py"], [f"{TESTS}/tracing"]),
    "models": Package(
        [
            "rollforward/datastore/**/*.py",
            *_in("rollforward", "outbox/entities", "runtime/sweeps/entities"),
            *_in("rollforward/tasks", "attempt_entities", "dead_task_entities", "stored/entities"),
            "rollforward/continuations/upload_entities.py",
        ],
        ["tests/rollforward/datastore", *OUTBOX_TESTS, f"{TESTS}/tasks/test_dead_tasks.py"],
        BY_TEXT,
    ),
    "paging": Package(
        ["rollforward/paging/*.py"],
        _in(f"{TESTS}/paging", "test_paging", "test_page_tokens", "test_paging_histories"),
    ),
    "outbox": Package(
        ["rollforward/outbox/*.py", "rollforward/tasks/*.py"],
        [f"{TESTS}/tasks/test_*.py", *OUTBOX_TESTS],
        BY_TEXT,
    ),
    "stored tasks": Package(
        ["rollforward/tasks/stored/*.py"], [f"{TESTS}/tasks/stored/test_*.py"], BY_TEXT
    ),
    "schedules": Package(
        ["rollforward/schedules/*.py"],
        [f"{TESTS}/schedules/test_*.py", f"{TESTS}/console/test_schedules.py"],
        BY_TEXT,
    ),
    "continuations": Package(
        ["rollforward/continuations/*.py", "rollforward/continuations/pages/*.py"],
        [
            *_in(
                f"{TESTS}/continuations",
                *("continuations", "run_states", "deferred_items", "progress"),
                *("continuation_sweeps", "expired_runs", "gauges", "listing", "pace", "sources"),
                start="test_",
            ),
            f"{TESTS}/continuations/pages/test_*.py",
            f"{TESTS}/continuations/planted/test_parts_of_*.py",
            "tests/rollforward/flask/endpoints/test_runs.py",
            "tests/pipelines/invitations/test_guest_lists.py",  # Of files of commas.
        ],
        BY_TEXT,
    ),
    "compat": Package(["rollforward/compat/*.py"], [f"{TESTS}/compat/test_*.py"], DEEP),
    "counters": Package(
        ["rollforward/counters/*.py", "rollforward/datastore/increments.py"],
        [f"{TESTS}/counters/test_*.py"],
        DEEP,
    ),
    "fork_join": Package(
        ["rollforward/fork_join/**/*.py"],
        [
            *_in(
                f"{TESTS}/fork_join",
                *("batches", "fork_join", "gauges", "inserts", "receipts", "outcomes", "parking"),
                *("sweep", "transactional", "accumulator"),
                start="test_",
            ),
            f"{TESTS}/fork_join/batching/test_*.py",
        ],
    ),
    "views": Package(
        ["rollforward/materialized_views/**/*.py"],
        [f"{TESTS}/materialized_views/**/test_*.py", *OF_RUNS],
        DEEP,
    ),
    "streams": Package(
        ["rollforward/streams/*.py", "rollforward/streams/[!b]*/*.py"],
        [f"{TESTS}/streams/**/test_*.py", "tests/rollforward/flask/api/test_streams.py"],
        (*DEEP, "searches", "test_memories", "test_bounds", "test_sizes"),
    ),
    # Most of its tests run where Beam is installed (`make beam`), and find nothing elsewhere.
    "beam": Package(
        ["rollforward/streams/beam/*.py"], [f"{TESTS}/streams/beam/test_*.py"], BY_TEXT
    ),
    "query_cache": Package(
        ["rollforward/query_cache/*.py"], [f"{TESTS}/query_cache/test_*.py"], DEEP
    ),
    "batches": Package(
        ["rollforward/batches/**/*.py"],
        [f"{TESTS}/batches/**/test_*.py", *OF_RUNS, f"{TESTS}/lanes/test_other_patterns.py"],
        DEEP,
    ),
    "flows": Package(
        ["rollforward/flows/**/*.py"],
        [
            f"{TESTS}/flows/**/test_*.py",
            *_in(f"{TESTS}/console/runs", "flows", "notes_of_flows", start="test_"),
            f"{TESTS}/datastore/test_kinds.py",
        ],
        (*DEEP, "planted_bugs", "planted_in_lanes"),
    ),
    "lanes": Package(["rollforward/lanes/**/*.py"], [f"{TESTS}/lanes/**/test_*.py"], DEEP),
    "pull_queues": Package(
        ["rollforward/pull_queues/*.py"],
        [
            f"{TESTS}/pull_queues/test_*.py",
            "tests/rollforward/flask/api/test_pull_queues.py",
            *_in(f"{TESTS}/console", "test_letters", "runs/test_runs_of_patterns"),
        ],
        (*DEEP, "test_jumping_clocks"),
    ),
    "gunicorn": Package(
        ["rollforward/gunicorn/*.py"],
        [
            f"{TESTS}/gunicorn",
            *_in(
                "tests/process",
                *("early_ends", "hostile_callers", "open_streams", "spread"),
                start="test_",
            ),
        ],
    ),
    "endpoints": Package(
        ["rollforward/flask/**/*.py"],
        [
            "tests/rollforward/flask",
            f"{TESTS}/tracing",  # Of spans.
            *_in("tests/handlers", "errors", "fields", "origins", "settings", start="test_"),
        ],
        BY_TEXT,
    ),
    "operations": Package(
        ["rollforward/operations/*.py", "rollforward/console/**/*.py"],
        [
            f"{TESTS}/console",
            f"{TESTS}/lanes/test_console.py",
            f"{TESTS}/schedules/test_schedules.py",
        ],
    ),
    "testing": Package(["rollforward/testing/*.py"], [f"{TESTS}/testing"], DEEP),
    "cli": Package(["rollforward/cli/**/*.py"], [f"{TESTS}/cli/**/test_*.py"]),
    "engine": Package(["rollforward/local/cloudtasks/engine/*.py"], EMULATOR_TESTS),
    "emulator": Package(
        [
            "rollforward/local/cloudtasks/*.py",
            *(
                f"rollforward/local/cloudtasks/{room}/*.py"
                for room in (
                    "delivery",
                    "protocol",
                    "server",
                    "server/grpc",
                    "server/rest",
                    "store",
                )
            ),
        ],
        EMULATOR_TESTS,
    ),
}
