"""`make seed`: fill the empty blog of a running app, and show the progress.

It presses "Fill the blog" like a visitor, so it needs only the address of the app, which may run
anywhere. A second call shows the progress of the first one.
"""

from __future__ import annotations

import argparse
import re
import sys
import time

import requests
from requests.adapters import HTTPAdapter
from urllib3 import Retry

URL = "http://127.0.0.1:8080"
TIMEOUT_S = 30.0
LOOK_EVERY_S = 1.0
RETRIES = 5


def main() -> int:
    """Fill the blog; return 1 on failure."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.blog", description=__doc__)
    parser.add_argument("--url", default=URL, help=f"where the app is ({URL})")
    url = parser.parse_args().url.rstrip("/")
    visitor = requests.Session()
    # A worker may end before it answers, for example on a reload. The requests are idempotent.
    retries = Retry(RETRIES, connect=0, allowed_methods=None, backoff_factor=0.2)
    visitor.mount(url, HTTPAdapter(max_retries=retries))
    try:
        return _fill(visitor, url)
    except requests.RequestException as error:
        print(f"{url} does not answer as the app would: {error}\nStart it with: make run")
        return 1


def _fill(visitor: requests.Session, url: str) -> int:
    page = _text(visitor.get(f"{url}/blog/new", timeout=TIMEOUT_S))
    token = re.search(r'name="csrf_token" value="([^"]+)"', page)
    if token is None:
        print(f"{url}/blog is no page of this app")
        return 1
    started = time.monotonic()
    response = visitor.post(f"{url}/blog/samples", data={"csrf_token": token[1]}, timeout=TIMEOUT_S)
    if "samples are for an empty one" in _text(response):
        print("The blog has posts already. Samples are for an empty one: make clean")
        return 1
    while True:
        done, total, is_running = _progress(visitor, url)
        bar = "#" * (30 * done // max(1, total))
        print(f"\r[{bar:<30}] {done:,} of {total:,}", end="", flush=True)
        if not is_running:
            break
        time.sleep(LOOK_EVERY_S)
    print(f"\n{done:,} posts and comments in {time.monotonic() - started:.0f} s: {url}/blog")
    return 0 if done == total else 1


def _progress(visitor: requests.Session, url: str) -> tuple[int, int, bool]:
    """Return the posts and comments done, their total, and whether the runs still work."""
    page = _text(visitor.get(f"{url}/blog/live", timeout=TIMEOUT_S))
    match = re.search(r'data-done="(\d+)" data-total="(\d+)"', page)
    done, total = (int(match[1]), int(match[2])) if match else (0, 0)
    return done, total, 'data-moving="yes"' in page


def _text(response: requests.Response) -> str:
    response.raise_for_status()
    return response.text


if __name__ == "__main__":
    sys.exit(main())
