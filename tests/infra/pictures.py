"""The README's pictures, made by one command: `make pictures`.

The whole stack is started, the demos are played while faults strike, and Chromium takes each page
while it moves: at 1280 x 900 in light and in dark, and at 390 x 844. `--all FOLDER` takes every
page of app and console in each of these, to look at.

Forms are sent by their address, with what the page has filled in: a button may be called anything.
One made-up query is Japanese: without a font that has it, its picture would show empty boxes.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tests.browser.conftest import QUIET, chromium
from tests.infra.stack import ROOT, Stack, running_stack

IMAGES = ROOT / "docs/images"
TIMEOUT_S = 30
# As long as a scene may take to end on a busy machine.
MAX_PLAY_S = 180.0
# What is on the way when a picture is taken: a run of a thousand takes some seconds.
FAULTS = {"id": "pictures", "kind": "error", "rate": 0.1}
SETTLE_MS = 600
Where = Callable[[Stack], str]


@dataclass(frozen=True)
class Look:
    """A view of a page: a window of a size in CSS pixels, in light or in dark."""

    suffix: str
    width: int
    height: int
    scheme: str


LIGHT = Look("", 1280, 900, "light")
DARK = Look("-dark", 1280, 900, "dark")
PHONE = Look("-phone", 390, 844, "light")
LOOKS = (LIGHT, DARK, PHONE)


@dataclass(frozen=True)
class Picture:
    """One page, while something happens on it.

    Attributes:
        name: Of the file, before the look's suffix.
        play: Sets something going, and returns the address of the page to look at.
        after_s: How long it goes before it is looked at.
        looks: What the README needs; none: only `--all` takes it.
    """

    name: str
    play: Where
    after_s: float = 0.0
    looks: tuple[Look, ...] = ()


# What is played


def send_invitations(stack: Stack) -> str:
    """Invite a thousand made-up guests to a party."""
    party = submit(stack, "/invitations", "/invitations")
    submit(stack, party, "/sample-guests", count="1000")
    settled(stack, party)
    submit(stack, party, "/send")
    return party


def add_students(stack: Stack) -> str:
    """Add a thousand students, then a thousand more while the page is looked at."""
    page = submit(stack, "/grades", "/grades/made-up")
    settled(stack, page)
    return submit(stack, page, "/grades/made-up")


def load_a_sum(stack: Stack) -> str:
    """Put a sum under load."""
    page = submit(stack, "/sums", "/sums", name="page-views")
    submit(stack, page, "/loads", rate="300", writers="8", seconds="15")
    return page


def click(stack: Stack) -> str:
    """Click a counter in four ways."""
    return submit(stack, "/counters", "/counters/loads", rate="60", seconds="12", ways="all")


def count_a_log(stack: Stack) -> str:
    """Have the sample log read, some lines at a time."""
    return submit(stack, "/streams/weblog", "/streams/weblog/logs", pace="watch")


def play_queries(stack: Stack) -> str:
    """Play ten days of made-up queries."""
    return submit(stack, "/zeitgeist", "/zeitgeist/playbacks")


def make_a_quilt(stack: Stack) -> str:
    """Have 64 squares painted."""
    return submit(stack, "/quilt", "/quilt")


def order_shoes(stack: Stack) -> str:
    """Open a sale of forty orders, for two of three of which a courier comes."""
    return submit(stack, "/orders", "/orders")


def flood(stack: Stack) -> str:
    """Let one tenant flood the queue of five, in lanes."""
    return submit(stack, "/tenants", "/tenants", way="lanes")


def measure(stack: Stack) -> str:
    """Have the stack measured."""
    return submit(stack, "/numbers", "/numbers")


def fill_the_blog(stack: Stack) -> str:
    """Have sample posts and comments made."""
    return submit(stack, "/blog", "/blog/samples")


def at(path: str) -> Where:
    """A page of the app on which nothing is set going."""
    return lambda stack: path


def in_console(path: str) -> Where:
    """A page of the console."""
    return lambda stack: stack.console + path


def newest_task(stack: Stack) -> str:
    """The console's page of the task that was created last."""
    [task] = stack.control("/api/v1/tasks?limit=1")["tasks"]
    return f"{stack.console}/tasks/{task['queue']}/{task['id']}"


PICTURES = (
    Picture("invitations", send_invitations, 1.5, LOOKS),
    Picture("grades", add_students, 1.5, (LIGHT, DARK)),
    Picture("weblog", count_a_log, 7.0, (LIGHT, DARK)),
    Picture("zeitgeist", play_queries, 20.0, (LIGHT, DARK)),
    Picture("orders", order_shoes, 14.0, (LIGHT, DARK)),
    Picture("tenants", flood, 14.0, (LIGHT, DARK)),
    Picture("sums", load_a_sum, 8.0),
    Picture("counters", click, 6.0),
    Picture("quilt", make_a_quilt, 1.5),
    Picture("numbers", measure, 6.0),
    Picture("blog", fill_the_blog, 3.0),
    Picture("home", at("/")),
    Picture("parties", at("/invitations")),
    Picture("all-sums", at("/sums")),
    Picture("not-found", at("/nothing-here")),
    Picture("console", in_console("/")),
    Picture("console-queues", in_console("/queues")),
    Picture("console-tasks", in_console("/tasks")),
    Picture("console-task", newest_task),
    Picture("console-costs", in_console("/costs")),
    Picture("console-outbox", at("/rollforward/outbox")),
    Picture("console-dead", at("/rollforward/dead")),
    Picture("console-mail", in_console("/mail")),
    Picture("console-cron", in_console("/cron")),
    Picture("console-faults", in_console("/faults")),
)


# Forms, by address


@dataclass
class Form:
    """A form of a page, with what is filled in."""

    action: str
    fields: dict[str, str] = field(default_factory=dict)


class Forms(HTMLParser):
    """Reads the forms of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Form] = []
        self._inside: Form | None = None
        self._text = ""  # The name of the textarea that is being read.
        self._select = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        if tag == "form":
            self._inside = Form(given.get("action", ""))
            self.found.append(self._inside)
        if self._inside is None:
            return
        name, kind = given.get("name", ""), given.get("type", "text")
        if tag == "input" and name and kind not in {"file", "submit", "button"}:
            if kind not in {"checkbox", "radio"} or "checked" in given:
                self._inside.fields[name] = given.get("value", "")
        elif tag == "textarea":
            self._text = name
            self._inside.fields[name] = ""
        elif tag == "select":
            self._select = name
        elif tag == "option" and self._select:
            value = given.get("value", "")
            if "selected" in given or self._select not in self._inside.fields:
                self._inside.fields[self._select] = value

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._inside = None
        elif tag == "textarea":
            self._text = ""
        elif tag == "select":
            self._select = ""

    def handle_data(self, data: str) -> None:
        if self._inside is not None and self._text:
            self._inside.fields[self._text] += data


def submit(stack: Stack, path: str, action: str, **fields: str) -> str:
    """Send a form of a page, by the end of its address; return the path of what follows.

    Raises:
        LookupError: the page has no such form.
        RuntimeError: the app refuses it.
    """
    app = stack.app.rstrip("/")
    forms = Forms()
    forms.feed(stack.visitor.get(app + path, timeout=TIMEOUT_S).text)
    fitting = [form for form in forms.found if form.action.partition("?")[0].endswith(action)]
    if not fitting:
        raise LookupError(f"{path} has no form for {action}")
    # Sent to where the page is: a fragment would be lost, and a file is not needed.
    answer = stack.visitor.post(
        app + fitting[0].action, data={**fitting[0].fields, **fields}, timeout=TIMEOUT_S
    )
    if not answer.ok:
        raise RuntimeError(
            f"{fitting[0].action} answered {answer.status_code}: {answer.text[:500]}"
        )
    return answer.url.removeprefix(app).partition("#")[0].partition("?")[0]


def settled(stack: Stack, path: str) -> None:
    """Wait until nothing moves on a page any more."""
    ends_at = time.monotonic() + MAX_PLAY_S
    while (
        'data-moving="no"'
        not in stack.visitor.get(stack.app.rstrip("/") + path, timeout=TIMEOUT_S).text
    ):
        if time.monotonic() > ends_at:
            raise TimeoutError(f"{path} did not come to rest")
        time.sleep(0.3)


# Taking them


@contextlib.contextmanager
def windows(browser: Any) -> Iterator[dict[Look, Any]]:
    """Open a window for each look, without motion that a picture would cut in half."""
    with contextlib.ExitStack() as stack:
        opened = {}
        for look in LOOKS:
            context = browser.new_context(
                viewport={"width": look.width, "height": look.height},
                color_scheme=look.scheme,
                reduced_motion="reduce",
                device_scale_factor=1,
            )
            stack.callback(context.close)
            opened[look] = context.new_page()
        yield opened


def take(
    stack: Stack, shown: dict[Look, Any], picture: Picture, folder: Path, *, all_: bool
) -> None:
    """Play a picture's scene, and take it in the looks that are wanted."""
    # Of the scene before.
    stack.control("/api/v1/wait-idle", {"timeout_s": MAX_PLAY_S}, MAX_PLAY_S + TIMEOUT_S)
    looks = LOOKS if all_ else picture.looks
    where = picture.play(stack)
    url = where if where.startswith("http") else stack.app.rstrip("/") + where
    time.sleep(picture.after_s)
    for look in looks:
        page = shown[look]
        page.goto(url)
        page.wait_for_timeout(SETTLE_MS)
        path = folder / f"{picture.name}{look.suffix}.png"
        page.screenshot(path=path)
        print(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def missing_font() -> str:
    """Say which font to install; empty: none is missing, as far as fontconfig is there to tell."""
    list_fonts = shutil.which("fc-list")
    if list_fonts is None:
        return ""
    found = subprocess.run([list_fonts, ":lang=ja"], capture_output=True, text=True, check=True)
    if found.stdout.strip():
        return ""
    return "No font has Japanese: pages would show empty boxes. apt-get install fonts-vlgothic"


def main(arguments: Sequence[str]) -> int:
    """Take the pictures; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.infra.pictures", description=__doc__)
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="every page, in every look")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these pictures")
    options = parser.parse_args(arguments)
    if missing := missing_font():
        print(missing, file=sys.stderr)
        if options.all is None:
            return 1
    folder = options.all or IMAGES
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [
        picture
        for picture in PICTURES
        if (options.all or picture.looks) and (not options.only or picture.name in options.only)
    ]
    with running_stack() as stack, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=QUIET)
        stack.control("/api/v1/faults", FAULTS)
        with windows(browser) as shown:
            for picture in wanted:
                take(stack, shown, picture, folder, all_=options.all is not None)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
