"""The console that the app mounts, in a real browser: axe, keyboard, no script, replays."""

from __future__ import annotations

import datetime
import json
import secrets
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
import requests
from playwright.sync_api import Browser, Page, expect

from rollforward.outbox import drain
from rollforward.outbox.entities import OutboxTask, RowId
from rollforward.runtime import open_cloud_tasks
from rollforward.runtime.messages import Message
from rollforward.tasks import CloudTaskQueue, UrlTarget
from tests.browser.forms import width_beyond
from tests.browser.looks import drawn, shown_violations, violations
from tests.infra.stack import Stack, until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]

PATH = "/tasks/continuations/tell-guests"
PAGES = (
    "/",
    "/dead",
    "/dead/all/replay",
    "/runs",
    "/runs/streams/weblog",
    "/waiting?queue=default",
)
PAGES += ("/runs?pattern=flows&state=failed", "/runs/retry?pattern=flows&id=x&step=x")
PAGES += ("/letters/streams/weblog", "/letters/streams/weblog/all/replay")
PAGES += (
    "/queues/purge?queue=default",
    "/schedules/one/nothing",
    "/outbox",
    "/lag",
    "/schedules",
    "/audit",
    "/runs/nothing/nothing",
)
PAGES += (
    "/runs?pattern=app&sort=longest",
    "/dead?age=1h&sort=oldest",
    "/lanes",
    "/lanes/of/tenants",
)
FORMS = (
    "/enqueue",
    "/enqueue/task?path=/tasks/tenants/work",
    "/enqueue/task?path=/tasks/sums/begin",
)


@pytest.fixture(scope="package")
def address(stack: Stack) -> str:
    """The address of the app's console."""
    return f"{stack.app}/rollforward"


@pytest.fixture
def desk(stack: Stack, address: str) -> str:
    """The address of a console whose list begins with tasks that this test alone has.

    A replay takes what died before it was asked for, and what it replayed dies again in its time:
    tasks that died since stay in the list.
    """
    kill_tasks(stack, address, 5)
    return address


def kill_tasks(stack: Stack, address: str, count: int) -> None:
    """Send tasks of runs that do not exist, until they are dead."""
    env = requests.get(f"{stack.console}/api/v1/shell", timeout=30).json()["environment"]
    target = UrlTarget(env["TASKS_URL"], env["TASKS_SERVICE_ACCOUNT"], env["TASKS_URL"])
    queue = CloudTaskQueue(
        open_cloud_tasks(emulator=env["CLOUD_TASKS_EMULATOR_HOST"]),
        env["GOOGLE_CLOUD_PROJECT"],
        env.get("TASKS_LOCATION", "us-central1"),
        target,
    )
    runs = {f"gone-{secrets.token_hex(8)}" for _ in range(count)}
    for run_id in runs:
        args = {"run_id": run_id, "chain": 0, "number": 0, "after": ""}
        queue.create(Message(PATH, "fan-out", json.dumps(args).encode()))
    until(lambda: all(run_id in dead_list(address) for run_id in runs), 60)


def dead_list(address: str) -> str:
    return requests.get(f"{address}/api/v1/dead-tasks?limit=50", timeout=30).text


def test_every_page_of_the_app_s_console_is_accessible(desk: str, browser: Browser) -> None:
    """No violation of WCAG 2.2 AA nor of axe's best practice: by day, and on a phone at night."""
    page = browser.new_page(reduced_motion="reduce")
    faults: dict[str, list[str]] = {}
    for path in drawn(PAGES):
        faults |= violations(page, desk + path)
    page.close()

    assert faults == {}


def test_the_forms_of_tasks_are_accessible(desk: str, browser: Browser) -> None:
    """Empty, refused, and filled with the arguments of a dead task."""
    dead = requests.get(f"{desk}/api/v1/dead-tasks?limit=1", timeout=30).json()["dead_tasks"][0]
    page = browser.new_page(reduced_motion="reduce")
    faults: dict[str, list[str]] = {}
    for path in (*FORMS, f"/dead/edit?id={quote(dead['id'])}"):
        faults |= violations(page, desk + path)
    page.goto(desk + FORMS[1])
    page.get_by_role("button", name="Enqueue").click()
    expect(page.get_by_role("alert")).to_be_visible()
    faults |= shown_violations(page, "refused")
    page.close()

    assert faults == {}


def test_an_operator_replays_what_is_dead(desk: str, page: Page, problems: list[str]) -> None:
    """From the first page: what needs attention, one dead task, all that match, the trail."""
    page.goto(desk + "/")
    page.get_by_role("link", name="dead tasks to replay").click()
    page.get_by_role("link", name=PATH).first.click()
    expect(page.locator("pre").first).to_contain_text("there is no run gone-")
    page.go_back()

    page.get_by_label("Class of error").fill("Reject")
    page.get_by_role("button", name="Filter").click()
    page.get_by_role("link", name="Replay… all that match").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Replay")
    page.get_by_role("button", name="Replay").click()

    expect(page.get_by_role("heading", level=1)).to_have_text("replay-dead-tasks")
    page.goto(f"{desk}/audit")
    expect(page.locator("table")).to_contain_text("Replay dead tasks")
    expect(page.locator("table")).to_contain_text("this machine")
    assert problems == []
    assert width_beyond(page) <= 0


# The editor has the address: a browser without one would do nothing.
NOTE_CLICKS = """() => addEventListener("click", (event) => {
  document.body.dataset.opened = event.target.closest("a").href;
  event.preventDefault();
})"""


def test_code_opens_in_the_editor_by_a_click(stack: Stack, desk: str, page: Page) -> None:
    """From a dead task, from a task that can be enqueued, and from the code of a demo's page."""
    dead = requests.get(f"{desk}/api/v1/dead-tasks?limit=1", timeout=30).json()["dead_tasks"][0]
    for url, definition in (
        (f"{desk}/dead/one/{quote(dead['id'])}", "def "),
        (desk + FORMS[1], "def _work("),
        (f"{stack.app}/counters?tab=code", "WAYS: "),
    ):
        page.goto(url)
        page.evaluate(NOTE_CLICKS)
        page.locator("a[href^='vscode:']").first.click()
        address = page.locator("body").get_attribute("data-opened") or ""
        path, _, line = address.removeprefix("vscode://file/").rpartition(":")
        shown = Path(path).read_text(encoding="utf-8").splitlines()[int(line) - 1 :]
        assert any(definition in text for text in shown[:5]), address


def test_a_dead_task_is_edited_and_replayed_on_record(desk: str, page: Page) -> None:
    """From its page; the trail says who did it, to which dead task, and that it was done."""
    page.goto(f"{desk}/dead")
    page.get_by_role("link", name=PATH).first.click()
    page.get_by_role("link", name="Edit and replay…").click()
    page.get_by_label("run_id").fill(f"gone-{secrets.token_hex(8)}")
    page.get_by_role("button", name="Replay with these arguments").click()
    expect(page.get_by_text("Replayed").first).to_be_visible()
    dead_id = page.url.partition("?")[0].rpartition("/")[2]

    page.goto(f"{desk}/audit")
    row = page.get_by_role("row").filter(has_text="Edit and replay dead task").first
    expect(row).to_contain_text("this machine")
    expect(row).to_contain_text("done", ignore_case=True)
    expect(row).to_contain_text(unquote(dead_id))


def test_the_console_works_without_a_script(desk: str, browser: Browser) -> None:
    """Boxes and buttons are forms: a selected dead task is replayed."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{desk}/dead")

    page.get_by_role("checkbox").first.check()
    page.get_by_role("button", name="Replay the selected").click()

    expect(page.get_by_role("heading", level=1)).to_have_text("replay-dead-tasks")
    context.close()


def test_a_list_stays_while_the_pointer_is_on_a_button(desk: str, page: Page) -> None:
    """Rows that are new moved it, and the press replayed another task than the one under it."""
    page.goto(f"{desk}/dead")
    newer = requests.get(f"{desk}/dead", timeout=30).text.replace(PATH, "/tasks/other")
    page.get_by_role("button", name="Replay /tasks").first.hover()
    page.route("**/dead", lambda route: route.fulfill(body=newer, content_type="text/html"))
    for _ in range(2):
        page.wait_for_event("response", lambda response: response.url.endswith("/dead"))

    expect(page.get_by_role("link", name=PATH).first).to_be_visible()
    page.mouse.move(0, 0)
    expect(page.get_by_role("link", name="/tasks/other").first).to_be_visible()


def test_the_list_is_worked_by_keyboard(desk: str, page: Page) -> None:
    """Tab reaches the boxes and the buttons, and Space selects."""
    page.goto(f"{desk}/dead")
    box = page.get_by_role("checkbox").first

    box.focus()
    page.keyboard.press("Space")
    expect(box).to_be_checked()
    page.keyboard.press("Tab")

    assert page.evaluate("document.activeElement.tagName") == "A"


def strand(stack: Stack) -> str:
    """Leave a row in the outbox, as a process that died half a minute ago; return its body."""
    walk = secrets.token_hex(8)
    created = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=30)
    row = RowId(secrets.token_hex(12), created.replace(tzinfo=None), 0, False, "1a2b3c4d")
    body = f'{{"partition": "0", "walk": "{walk}", "after": ""}}'
    with stack.context():
        OutboxTask(id=row.text, path=drain.path, queue=drain.queue, body=body).put()
    return walk


def test_a_stranded_row_is_seen_and_swept(page: Page, stack: Stack, problems: list[str]) -> None:
    """The row is there with its arguments, fits the page, and is gone after the sweep."""
    body = strand(stack)
    page.goto(f"{stack.app}/rollforward/outbox")

    row = page.get_by_role("row").filter(has_text=body)
    row.get_by_text("Body", exact=True).first.click()
    expect(row).to_contain_text(drain.path)
    width = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    page.get_by_role("button", name="Sweep now").click()
    expect(page.get_by_role("status")).to_contain_text("Swept")

    expect(row).to_have_count(0)
    assert width <= 0, "the page is wider than the window"
    assert problems == []


def open_sale(stack: Stack) -> str:
    """Open a sale of one order in the demo, whose courier does not come; return the run's id."""
    page = stack.visitor.get(f"{stack.app}/orders", timeout=30).text
    names = ("csrf_token", "id")
    hidden = {name: page.split(f'name="{name}" value="')[1].split('"')[0] for name in names}
    form = {"orders": "1", "stock": "1", "patience": "300", "courier": "you", "pace": "fast"}
    stack.visitor.post(f"{stack.app}/orders", data=hidden | form, timeout=30)
    return f"orders|{hidden['id']}-000"


def test_a_flow_leads_to_its_tasks_and_back(stack: Stack, address: str, page: Page) -> None:
    """Its page has its steps, and a task of it on the local platform leads to that page."""
    run_id = open_sale(stack)
    api = f"{address}/api/v1/runs/flows/{quote(run_id)}"
    until(lambda: "event courier" in requests.get(api, timeout=30).text, 60)

    page.goto(f"{address}/runs/flows/{quote(run_id)}")
    expect(page.get_by_text("Waits for the event courier")).to_be_visible()
    assert width_beyond(page) <= 0
    page.get_by_role("link", name="Tasks and attempts").click()
    page.locator("a[href^='/tasks/orders/']").first.click()

    expect(page.locator(f"a[href*='/runs/flows/{quote(run_id)}']").first).to_be_visible()
