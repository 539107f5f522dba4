"""The collector of traces, and the console's pages of them."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import requests

from rollforward.local.app.sdk import CONSOLE_URL, ENDPOINTS
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.console.trace_api import MAX_BODY_BYTES
from rollforward.local.traces.spans import Event, SpanId
from rollforward.tracing import TRACE_HEADER
from tests.rollforward.local.conftest import ask
from tests.rollforward.local.console.conftest import EVIL, path_of
from tests.rollforward.local.traces.spans import exported, provider, span, span_id, trace_id

EXPORTER = "opentelemetry.exporter.otlp.proto.http"
TASK = {"messaging.destination.name": "default", "messaging.message.id": "t7"}
OTLP = {"Content-Type": "application/x-protobuf"}
# A worker of the app: it loads no library of ours but the SDK's set-up.
WORKER = """
from rollforward.local.app.sdk import export_traces
assert export_traces()
assert not export_traces()  # There is one now.
from opentelemetry import trace
with trace.get_tracer("app").start_as_current_span("GET /orders"):
    trace.get_tracer("app").start_span("commit").end()
"""


@pytest.fixture
def traces(platform):
    """A request, the task that it caused and that failed, and a fold of another trace."""
    store = platform.traces
    failed = {"problem": EVIL, "attributes": {**TASK, "rollforward.dead_task": "d/1", "note": EVIL}}
    store.add([span(1, name="GET /orders", kind="server", ms=50)])
    stack = Event(1, "exception", {"exception.stacktrace": EVIL})
    failed["events"] = (stack,)
    store.add([span(2, 1, name="process /tasks/ship", kind="consumer", at_ms=20, **failed)])
    links = (SpanId(trace_id(1), span_id(2)), SpanId(trace_id(9), span_id(9)))
    store.add([span(3, trace=2, name="fold orders", kind="consumer", links=links)])
    return store


def collect(console, body, **headers):
    url = f"{console.url}/api/v1/traces"
    return requests.post(url, data=body, headers={**OTLP, **headers}, timeout=30)


def test_a_worker_with_the_packages_sends_its_spans_when_it_ends(console):
    """Without a word in the app's code, and with what is left at its exit."""
    pytest.importorskip(EXPORTER)
    environment = {**os.environ, CONSOLE_URL: console.url}
    subprocess.run([sys.executable, "-c", WORKER], env=environment, check=True, timeout=60)

    [trace] = requests.get(f"{console.url}/api/v1/traces", timeout=30).json()["traces"]
    shown = requests.get(f"{console.url}/api/v1/traces/{trace['id']}", timeout=30).json()
    assert (trace["name"], trace["span_count"]) == ("GET /orders", 2)
    assert [each["name"] for each in shown["spans"]] == ["GET /orders", "commit"]
    assert shown["spans"][1]["parent"] == shown["spans"][0]["id"]
    assert shown["spans"][0]["process"].startswith("app ")


@pytest.mark.parametrize(
    ("name", "path"), list(zip(ENDPOINTS, ("/api/v1/traces", "/api"), strict=True))
)
def test_a_collector_that_is_named_comes_before_the_console(console, name, path):
    """A proxy that does not know this machine is not asked."""
    pytest.importorskip(EXPORTER)
    nobody = "http://127.0.0.1:1"
    named = {CONSOLE_URL: nobody, name: f"{console.url}{path}", "HTTP_PROXY": nobody}
    environment = {**os.environ, **named}
    subprocess.run([sys.executable, "-c", WORKER], env=environment, check=True, timeout=60)

    [trace] = requests.get(f"{console.url}/api/v1/traces", timeout=30).json()["traces"]
    assert trace["name"] == "GET /orders"


def test_a_collector_on_another_machine_is_reached_by_the_proxy():
    """As an exporter of the app's own would reach it."""
    pytest.importorskip(EXPORTER)
    targets = []

    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self):
            targets.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        own = {name: text for name, text in os.environ.items() if "proxy" not in name.lower()}
        named = {ENDPOINTS[1]: "http://collector.invalid:4318"}
        environment = {**own, **named, "HTTP_PROXY": f"http://127.0.0.1:{proxy.server_port}"}
        subprocess.run([sys.executable, "-c", WORKER], env=environment, check=True, timeout=60)
        proxy.shutdown()

    assert targets == ["http://collector.invalid:4318/v1/traces"]


@pytest.mark.parametrize("changes", [{"OTEL_SDK_DISABLED": "true"}, {CONSOLE_URL: ""}])
def test_a_worker_may_be_told_to_trace_nothing(changes):
    """By OpenTelemetry's own variable; and without a collector nothing is set up."""
    program = "from rollforward.local.app.sdk import export_traces\nassert not export_traces()\n"
    program += "import sys\nassert 'opentelemetry.sdk' not in sys.modules"
    environment = {**os.environ, CONSOLE_URL: "http://127.0.0.1:1", **changes}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)


def test_an_app_with_an_sdk_keeps_it():
    """And its exporter, which goes to the collector that it names."""
    program = (
        "from opentelemetry import trace\nfrom opentelemetry.sdk.trace import TracerProvider\n"
        "own = TracerProvider()\ntrace.set_tracer_provider(own)\n"
        "from rollforward.local.app.sdk import export_traces\nassert not export_traces()\n"
        "assert trace.get_tracer_provider() is own"
    )
    environment = {**os.environ, CONSOLE_URL: "http://127.0.0.1:1"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)


def test_the_collector_takes_what_an_exporter_sends(console, platform):
    """Packed, too; and the answer is the protocol's."""
    pytest.importorskip(EXPORTER)
    work = provider().get_tracer("test").start_span("GET /")
    work.end()

    plain = collect(console, exported(work))
    packed = collect(console, gzip.compress(exported(work)), **{"Content-Encoding": "gzip"})

    assert (plain.status_code, packed.status_code) == (200, 200)
    assert plain.headers["content-type"] == "application/x-protobuf"
    context = work.get_span_context()
    assert platform.traces.get(f"{context.trace_id:032x}").spans.keys() == {
        f"{context.span_id:016x}"
    }


def test_the_collector_refuses_what_is_none_and_keeps_nothing(console, platform):
    """Another form, another site, garbage, and more bytes than a batch has."""
    pytest.importorskip(EXPORTER)
    refused = [
        collect(console, b"\xff"),
        collect(console, b"{}", **{"Content-Type": "application/json"}),
        collect(console, b"", **{"Content-Type": "text/plain"}),
        collect(console, b"", Origin="http://evil.example"),
        collect(console, b"", Host="evil.example"),
        collect(console, b"\0" * (MAX_BODY_BYTES + 1)),
    ]

    assert [answer.status_code for answer in refused] == [400, 415, 403, 403, 403, 413]
    assert platform.traces.get(trace_id(1)) is None


def test_looks_of_the_platform_itself_are_no_traces(console, platform):
    """They come every two seconds, and say nothing of the app."""
    pytest.importorskip(EXPORTER)
    tracer = provider().get_tracer("test")
    work = [
        tracer.start_span("GET", attributes={"url.path": path}) for path in ("/_ah/warmup", "/")
    ]
    for each in work:
        each.end()

    assert collect(console, exported(*work)).status_code == 200
    kept = [f"{each.get_span_context().trace_id:032x}" for each in work]
    assert [platform.traces.get(each) is not None for each in kept] == [False, True]


def test_the_newest_traces_are_listed_and_lead_to_their_waterfall(browser, traces):
    """Escaped, with what failed."""
    page = browser.get("/traces").text

    assert page.index("fold orders") < page.index("GET /orders")
    assert f'href="/traces/{trace_id(1)}"' in page
    assert "1 failure" in page
    assert "fold orders" not in browser.get("/traces?q=orders&failed=1").text
    assert "No trace matches" in browser.get("/traces?run=nothing").text
    assert browser.get("/traces?slow=soon").status == 400


def test_a_waterfall_leads_to_task_logs_dead_task_and_linked_traces(browser, traces):
    """And says nothing as HTML that a span has said."""
    page = browser.get(f"/traces/{trace_id(1)}").text

    assert EVIL not in page
    for address in (
        *("/tasks/default/t7", "/logs?task=default/t7", f"/logs?trace={trace_id(1)}"),
        *("/rollforward/dead/one/d/1", f"/traces/{trace_id(2)}?span={span_id(3)}"),
    ):
        assert f'{address}"' in page
    assert 'class="bar is-elsewhere"' in page
    other = browser.get(f"/traces/{trace_id(2)}").text
    assert f"/traces/{trace_id(1)}?span={span_id(2)}" in other
    assert "not kept" in other  # The span of a trace that was dropped.


def test_a_part_of_a_trace_is_a_page_of_its_own(browser, traces):
    """Its axis is as long as the part; what does not exist is not found."""
    part = browser.get(f"/traces/{trace_id(1)}?span={span_id(2)}")

    assert part.status == 200
    assert "is-server" not in part.text
    assert browser.get(f"/traces/{trace_id(1)}?span={span_id(7)}").status == 404
    assert browser.get(f"/traces/{trace_id(7)}").status == 404
    assert browser.get("/traces/none").status == 404


def test_log_lines_of_a_trace_are_those_of_its_tasks(browser, traces, platform):
    """Others are left out, and a trace that is not kept is not found."""
    platform.log_tail.add("app", "INFO shop: packed [task default/t7]")
    platform.log_tail.add("app", "INFO shop: other [task default/t8]")
    page = browser.get(f"/logs?trace={trace_id(1)}").text

    assert "shop: packed" in page
    assert "shop: other" not in page
    assert browser.get(f"/logs?trace={trace_id(7)}").status == 400
    api = ask(browser.address, "GET", f"/api/v1/logs?trace={trace_id(1)}")
    assert [record["task"] for record in json.loads(api.text)["records"]] == ["default/t7"]


def test_a_task_leads_to_its_trace(browser, engine, traces):
    """By the header that it carries, while the trace is kept."""
    pages = []
    for trace in (1, 7):
        task = messages.Task()
        task.http_request.url = "http://127.0.0.1:1/tasks/work"
        task.http_request.headers[TRACE_HEADER] = f"00-{trace_id(trace)}-{span_id(1)}-01"
        name = engine.tasks.create(engine.place.queue_name("default"), task).name
        pages.append(browser.get(path_of(name)).text)

    assert f'href="/traces/{trace_id(1)}"' in pages[0]
    assert "/traces/" not in pages[1].replace('href="/traces"', "")


def test_the_api_continues_its_list(console, traces):
    """By number; too many are refused."""
    url = f"{console.url}/api/v1/traces"
    first = requests.get(f"{url}?limit=1", timeout=30).json()
    second = requests.get(f"{url}?limit=1&before={first['next']}", timeout=30).json()

    names = [page["traces"][0]["name"] for page in (first, second)]
    assert names == ["fold orders", "GET /orders"]
    assert requests.get(f"{url}?limit=1001", timeout=30).status_code == 400
    assert requests.get(f"{url}/{trace_id(7)}", timeout=30).status_code == 404
