"""The same tasks on other frameworks, one at a time for each key, with a Redis of their own.

A program in an environment of its own (requirements-rivals.txt). It starts its workers, and prints
"ready". For each line that it reads it runs the tasks of all keys, and prints the seconds from the
first call to the end of the last task. Its arguments are the rival, the Redis, the number of keys,
and the tasks per key.

    python benchmarks/lanes/rivals.py celery redis://127.0.0.1:6399 10 100
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

TIMEOUT_S = 120
DONE = "lanes-done"


def celery_app(url: str) -> Any:
    """Return a Celery app whose broker is a Redis."""
    import celery
    import redis

    app = celery.Celery("rivals", broker=url)
    app.conf.update(worker_prefetch_multiplier=16, broker_connection_retry_on_startup=True)
    client = redis.Redis.from_url(url)

    @app.task(name="noop")
    def noop() -> None:
        client.incr(DONE)

    @app.task(name="locked")
    def locked(key: str) -> None:
        with client.lock(f"lock-{key}", timeout=60, sleep=0.005):
            client.incr(DONE)

    return app


def locks(url: str, keys: int) -> tuple[list[list[str]], Callable[[int], None]]:
    """Return the commands of two workers whose threads wait for locks, and the task runner.

    Each key has a lock, which keeps no order.
    """
    locked = celery_app(url).tasks["locked"]

    def run(per_key: int) -> None:
        for key in range(keys):
            for _ in range(per_key):
                locked.apply_async(args=[str(key)], queue="locked")

    return [_worker(url, "locked", f"{number}", pool="threads") for number in range(2)], run


def _worker(url: str, queue: str, name: str, *, pool: str = "solo") -> list[str]:
    """Return the command of a Celery worker."""
    options = ["worker", f"--pool={pool}", "--concurrency=8", "--loglevel=ERROR"]
    options += ["--without-gossip", "--without-mingle", "-Q", queue, "-n", f"{queue}-{name}@here"]
    code = f"import rivals; rivals.celery_app({url!r}).worker_main({options!r})"
    return [sys.executable, "-c", code]


def celery(url: str, keys: int) -> tuple[list[list[str]], Callable[[int], None]]:
    """Return the commands of Celery's workers, one per key, and the task runner."""
    noop = celery_app(url).tasks["noop"]

    def run(per_key: int) -> None:
        for key in range(keys):
            for _ in range(per_key):
                noop.apply_async(queue=f"line-{key}")

    return [_worker(url, f"line-{key}", f"{key}") for key in range(keys)], run


def dramatiq_actor(url: str) -> Any:
    """Return an actor that runs once at a time for a key, and is retried otherwise."""
    import dramatiq
    import redis
    from dramatiq.brokers.redis import RedisBroker
    from dramatiq.rate_limits import ConcurrentRateLimiter
    from dramatiq.rate_limits.backends import RedisBackend

    dramatiq.set_broker(RedisBroker(url=url))
    backend, client = RedisBackend(url=url), redis.Redis.from_url(url)

    @dramatiq.actor(max_retries=1_000, min_backoff=5, max_backoff=20)
    def noop(key: str) -> None:
        with ConcurrentRateLimiter(backend, f"limit-{key}", limit=1).acquire():
            client.incr(DONE)

    return noop


def dramatiq(url: str, keys: int) -> tuple[list[list[str]], Callable[[int], None]]:
    """Return the command of Dramatiq's workers, and the task runner."""
    noop = dramatiq_actor(url)

    def run(per_key: int) -> None:
        for key in range(keys):
            for _ in range(per_key):
                noop.send(str(key))

    folder = Path(tempfile.mkdtemp(prefix="rivals-"))
    code = f"import rivals\nrivals.dramatiq_actor({url!r})\n"
    (folder / "lane_actors.py").write_text(code)
    command = [sys.executable, "-m", "dramatiq", "lane_actors", "--path", str(folder)]
    return [[*command, "--processes=2", "--threads=8", "--skip-logging"]], run


def main() -> None:
    """Run one rival until standard input ends."""
    import redis

    name, url, keys, per_key = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    commands, run = {"celery": celery, "locks": locks, "dramatiq": dramatiq}[name](url, keys)
    client = redis.Redis.from_url(url)

    def timed(count: int) -> float:
        client.set(DONE, 0)
        began = time.perf_counter()
        run(count)
        while int(client.get(DONE) or 0) < keys * count:  # type: ignore[arg-type]
            if time.perf_counter() - began > TIMEOUT_S:
                raise RuntimeError(f"{name} has not run all tasks")
            time.sleep(0.005)
        return time.perf_counter() - began

    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    workers = [
        subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for command in commands
    ]
    try:
        timed(5)  # Waits until the workers are up.
        print("ready", flush=True)
        for _ in sys.stdin:
            print(timed(per_key), flush=True)
    finally:
        for worker in workers:
            worker.terminate()


if __name__ == "__main__":
    main()
