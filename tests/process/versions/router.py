"""A front end that splits requests between versions, as App Engine and Cloud Run do.

Each request goes to a version by chance, in the shares that `split` sets: visitors' and the queue's
alike. A version that does not answer is a 503, as from their front ends.

The router notes how each delivery of a task ends.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from rollforward.local.system.ports import LOOPBACK

DONE, WAITS = "done", "waits"
_OF_A_CONNECTION = {"connection", "content-length", "transfer-encoding", "keep-alive"}
_PATIENCE = aiohttp.ClientTimeout(total=60)


@dataclass(frozen=True)
class Delivery:
    """How a delivery of a task ended: "done", "waits" (as a new task), or by a status."""

    version: str
    path: str
    end: str


@dataclass
class Router:
    """The front end: where its versions listen, and which share each has."""

    versions: Mapping[str, str]
    shares: Mapping[str, float] = field(default_factory=dict)
    deliveries: Counter[Delivery] = field(default_factory=Counter)
    url: str = ""
    chance: random.Random = field(default_factory=lambda: random.Random(34))

    def split(self, **shares: float) -> None:
        """Send so much of all requests to each version from now on."""
        self.shares = shares

    async def handle(self, request: web.Request) -> web.Response:
        """Pass a request on, and its answer back."""
        (version,) = self.chance.choices([*self.shares], [*self.shares.values()])
        status, headers, body = await self._answer(request, self.versions[version])
        if request.path.startswith("/tasks/"):
            end = _end_of(status, body)
            self.deliveries[Delivery(version, request.path, end)] += 1
        return web.Response(status=status, headers=headers, body=body)

    async def _answer(
        self, request: web.Request, url: str
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        try:
            async with (
                # A connection for each request: none is closed by the other side before its use.
                aiohttp.ClientSession(
                    auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar(), timeout=_PATIENCE
                ) as session,
                session.request(
                    request.method,
                    f"{url}{request.path_qs}",
                    headers=_passed_on(request.headers.items()),
                    data=await request.read(),
                    allow_redirects=False,
                ) as answer,
            ):
                return answer.status, _passed_on(answer.headers.items()), await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            return 503, [], b"the instance is gone"


def _passed_on(headers: object) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name.lower() not in _OF_A_CONNECTION]  # type: ignore[attr-defined]


def _end_of(status: int, body: bytes) -> str:
    """Return how a delivery ended, by the answer that a local app gives."""
    if status not in (200, 204):
        return str(status)
    detail = json.loads(body).get("detail", "") if body else ""
    return WAITS if "as a new task" in detail else DONE


@contextlib.contextmanager
def routing(**versions: str) -> Iterator[Router]:
    """Run a router on a thread of its own."""
    router = Router(versions)
    started: concurrent.futures.Future[str] = concurrent.futures.Future()
    stop: concurrent.futures.Future[None] = concurrent.futures.Future()
    thread = threading.Thread(
        target=lambda: asyncio.run(_serve(router, started, stop)), name="router", daemon=True
    )
    thread.start()
    try:
        router.url = started.result(30)
        yield router
    finally:
        stop.set_result(None)
        thread.join()


async def _serve(
    router: Router,
    started: concurrent.futures.Future[str],
    stop: concurrent.futures.Future[None],
) -> None:
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", router.handle)
    runner = web.AppRunner(app, access_log=None)
    try:
        await runner.setup()
        await web.TCPSite(runner, LOOPBACK, 0).start()
    except BaseException as error:
        started.set_exception(error)
        return
    started.set_result(f"http://{LOOPBACK}:{runner.addresses[0][1]}")
    await asyncio.wrap_future(stop)
    await runner.cleanup()
