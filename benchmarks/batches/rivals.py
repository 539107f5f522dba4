"""The same thousand tasks on other frameworks, Celery and Dramatiq, with a Redis of their own.

A program in an environment of its own (requirements-rivals.txt). It starts two worker processes,
and prints "ready". For each line that it reads it runs a batch, and prints the seconds from the
call that starts the batch to the end of its callback.

    python benchmarks/batches/rivals.py celery redis://127.0.0.1:6399 1000
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TIMEOUT_S = 60
PROCESSES = 2


def celery_app(url: str) -> Any:
    """Return a Celery app whose broker and backend are one Redis."""
    import celery

    app = celery.Celery("rivals", broker=url, backend=url)
    # As in a fast deployment, a worker fetches several tasks at a time.
    app.conf.update(worker_prefetch_multiplier=16, broker_connection_retry_on_startup=True)

    @app.task(name="noop")
    def noop() -> None: ...

    @app.task(name="done")
    def done(results: list[None]) -> int:
        return len(results)

    return app


def celery(url: str) -> tuple[list[str], Callable[[int], None]]:
    """Return the command of Celery's workers, and a function that runs a batch."""
    from celery import chord

    app = celery_app(url)
    noop, done = app.tasks["noop"], app.tasks["done"]

    def run(count: int) -> None:
        ended = chord(noop.s() for _ in range(count))(done.s())
        if ended.get(timeout=TIMEOUT_S) != count:
            raise RuntimeError("the chord lost results")

    code = f"import rivals; rivals.celery_app({url!r}).worker_main("
    options = ["worker", "--pool=prefork", f"--concurrency={PROCESSES}", "--loglevel=ERROR"]
    return [sys.executable, "-c", f"{code}{[*options, '--without-gossip']!r})"], run


def dramatiq_actors(url: str) -> tuple[Any, Any]:
    """Return two actors on a Redis: one does nothing, one reports that all have ended."""
    import dramatiq
    import redis
    from dramatiq.brokers.redis import RedisBroker
    from dramatiq.middleware import GroupCallbacks
    from dramatiq.rate_limits.backends import RedisBackend

    broker = RedisBroker(url=url)
    broker.add_middleware(GroupCallbacks(RedisBackend(url=url)))
    dramatiq.set_broker(broker)

    @dramatiq.actor
    def noop() -> None: ...

    @dramatiq.actor
    def done(batch: str) -> None:
        redis.Redis.from_url(url).rpush(f"done-{batch}", "yes")

    return noop, done


def dramatiq(url: str) -> tuple[list[str], Callable[[int], None]]:
    """Return the command of Dramatiq's workers, and a function that runs a batch."""
    import redis
    from dramatiq import group

    noop, done = dramatiq_actors(url)
    client = redis.Redis.from_url(url)

    def run(count: int) -> None:
        batch = str(time.monotonic_ns())
        members = group(noop.message() for _ in range(count))
        members.add_completion_callback(done.message(batch))
        members.run()
        if client.blpop([f"done-{batch}"], timeout=TIMEOUT_S) is None:
            raise RuntimeError("the group did not end")

    # Dramatiq's workers import a module that declares the actors at import time.
    folder = Path(tempfile.mkdtemp(prefix="rivals-"))
    code = f"import rivals\nrivals.dramatiq_actors({url!r})\n"
    (folder / "dramatiq_actors.py").write_text(code)
    command = [sys.executable, "-m", "dramatiq", "dramatiq_actors", "--path", str(folder)]
    return [*command, f"--processes={PROCESSES}", "--threads=8", "--skip-logging"], run


def main() -> None:
    """Run one rival until standard input ends."""
    name, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    command, run = {"celery": celery, "dramatiq": dramatiq}[name](url)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    workers = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    try:
        run(50)  # Waits until the workers are up.
        print("ready", flush=True)
        for _ in sys.stdin:
            began = time.perf_counter()
            run(count)
            print(time.perf_counter() - began, flush=True)
    finally:
        workers.terminate()
        workers.wait(30)


if __name__ == "__main__":
    main()
