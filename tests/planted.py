"""Where `mutants.py` plants bugs, and which tests should find them."""

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


TESTS = "tests/pipelines"
DEEP = ("under_faults", "exhaustively", "schedules")
EMULATOR_TESTS = ["tests/devserver/test_cloudtasks_*.py", "tests/contracts"]


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
    start="test_",
)
PACKAGES = {
    "runtime": Package(
        ["pipelines/*.py", "pipelines/runtime/*.py"],
        [f"{TESTS}/runtime", *_in(TESTS, "registry", "mistakes", start="test_")],
    ),
    "models": Package(
        _in(
            "models",
            *("attempts", "calls", "commits", "contexts", "dead_tasks", "expiry", "outbox"),
            *("rows", "sweeps", "transactions", "unknown_properties", "uploads"),
        ),
        ["tests/models", *OUTBOX_TESTS, f"{TESTS}/tasks/test_dead_tasks.py"],
    ),
    "paging": Package(
        ["pipelines/paging/*.py"],
        _in(f"{TESTS}/paging", "test_paging", "test_page_tokens", "test_paging_histories"),
    ),
    "outbox": Package(
        ["pipelines/outbox/*.py", "pipelines/tasks/*.py"],
        [f"{TESTS}/tasks/test_*.py", *OUTBOX_TESTS],
    ),
    "continuations": Package(
        ["pipelines/continuations/*.py", "models/continuations.py"],
        [
            *_in(
                f"{TESTS}/continuations",
                *("continuations", "run_states", "deferred_items", "progress", "seen_pages"),
                *("continuation_sweeps", "expired_runs", "page_leases", "pace", "sources"),
                start="test_",
            ),
            "tests/handlers/endpoints/test_runs.py",
            "tests/demos/test_guest_lists.py",  # Of files of commas.
        ],
    ),
    "counters": Package(
        ["pipelines/counters/*.py", *_in("models", "counters", "increments")],
        [f"{TESTS}/counters/test_*.py"],
        DEEP,
    ),
    "fork_join": Package(
        ["pipelines/fork_join/*.py", "models/fork_join.py"],
        _in(
            f"{TESTS}/fork_join",
            *("group_commit", "fork_join", "inserts", "receipts", "outcomes", "parking"),
            *("epochs", "sweep", "transactional", "adaptive", "accumulator"),
            start="test_",
        ),
    ),
    "views": Package(
        ["pipelines/materialized_views/*.py", "models/materialized_views.py"],
        [f"{TESTS}/materialized_views/test_*.py"],
        DEEP,
    ),
    "streams": Package(
        ["pipelines/streams/*.py", "models/streams.py"],
        [f"{TESTS}/streams/test_*.py", "tests/handlers/endpoints/test_streams.py"],
        (*DEEP, "test_growing", "test_changing", "test_memories", "test_bounds", "test_sizes"),
    ),
    "query_cache": Package(
        ["pipelines/query_cache/*.py"], [f"{TESTS}/query_cache/test_*.py"], DEEP
    ),
    "batches": Package(
        ["pipelines/batches/*.py", "models/batches.py"], [f"{TESTS}/batches/test_*.py"], DEEP
    ),
    "pull_queues": Package(
        ["pipelines/pull_queues/*.py", "models/pull_queues.py"],
        [f"{TESTS}/pull_queues/test_*.py", "tests/handlers/endpoints/test_pull_queues.py"],
        (*DEEP, "test_jumping_clocks"),
    ),
    "endpoints": Package(
        ["handlers/endpoints/*.py"],
        [
            "tests/handlers/endpoints",
            *_in("tests/handlers", "errors", "fields", "origins", start="test_"),
        ],
    ),
    "engine": Package(
        _in(
            "devserver/cloudtasks",
            *("engine", "engine_state", "queues", "tasks", "attempts", "outcomes"),
        ),
        EMULATOR_TESTS,
    ),
    "emulator": Package(
        _in(
            "devserver/cloudtasks",
            *(
                "batches",
                "behaviour",
                "clock",
                "control",
                "database",
                "dispatcher",
                "emulator",
                "errors",
            ),
            *("faults", "grpc_server", "history", "incidents", "listing", "messages", "names"),
            *("operations", "outgoing", "paging", "queue_state", "queue_yaml", "rates", "reasons"),
            *("records", "retries", "statuses", "store", "tables", "task_messages", "tokens"),
            *("validation", "views"),
        ),
        EMULATOR_TESTS,
    ),
}
