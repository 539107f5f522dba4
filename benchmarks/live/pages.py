"""Open pages in a process of their own, which listen or poll as static/live.js does.

    python -m benchmarks.live.pages PORT ADDRESS PAGES SECONDS

It prints as JSON how many pages had a stream, and how often they requested an id and a part.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter

FAST_S = 0.4
Counts = Counter[str]


async def page(port: int, address: str, ends_at: float, counts: Counts) -> None:
    """Listen if the server has room for a stream, otherwise poll at the pace that it sets."""
    status, reader, writer = await _ask(port, f"{address}/events")
    if status == 200:
        counts["streams"] += 1
        while (left_s := ends_at - time.monotonic()) > 0:
            try:
                line = await asyncio.wait_for(reader.readline(), left_s)
            except TimeoutError:
                break
            if not line:
                break
            if line.startswith(b"event: changed"):
                counts["events"] += 1
                await asyncio.sleep(FAST_S)
                await _part(port, counts)
        writer.close()
        return
    writer.close()
    seen = ""
    while time.monotonic() < ends_at:
        _, reader, writer = await _ask(port, address)
        latest = json.loads(await reader.read())
        writer.close()
        counts["ids"] += 1
        if latest["id"] != seen:
            seen = latest["id"]
            await _part(port, counts)
        await asyncio.sleep(latest["again_ms"] / 1000)


async def _part(port: int, counts: Counts) -> None:
    _, _, writer = await _ask(port, "/bench/part")
    writer.close()
    counts["parts"] += 1


async def _ask(port: int, path: str) -> tuple[int, asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    return int(head[9:12]), reader, writer


async def main() -> None:
    """Open the pages one after the other within a second."""
    port, address, pages, seconds = (
        int(sys.argv[1]),
        sys.argv[2],
        int(sys.argv[3]),
        float(sys.argv[4]),
    )
    counts: Counts = Counter()
    ends_at = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for _ in range(pages):
            group.create_task(page(port, address, ends_at, counts))
            await asyncio.sleep(1 / pages)
    print(json.dumps(counts))


if __name__ == "__main__":
    asyncio.run(main())
