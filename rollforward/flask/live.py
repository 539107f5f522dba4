"""Live updates: a page is notified of changes in a part of it, and fetches that part again.

    GET /updates/<token>                    {"id": ..., "again_ms": ...}: id of the last change
    GET /updates/<token,...>/events?after=  the same ids as server-sent events

A token names the topics of a page and is signed, so a caller can watch only topics of pages it has
seen. One stream serves all pages of a browser, because a browser opens six connections to a host:
its address lists their tokens, and each event their ids, in the same order.

An id is made of the versions of a page's topics, which are in memcached, so processes need not
know of each other. An id that differs from the page's means that the page should fetch again. A
stream resumes from `Last-Event-ID`, or `after`, so a change between two connections is sent at
once.

Call `Clients.publish` after the commit. Successful requests publish on their own: `watch` maps the
paths of requests to topics. A refused request publishes nothing, or any stranger could make all
pages fetch. The changes of a topic within 50 ms share a notification. Notifications are hints, so
pages also poll, but rarely.

A stream keeps one of the process's threads, so there are at most `LIVE_STREAMS` in a process; 0
where the platform buffers responses until they are complete, as App Engine does. Other pages get
503 and poll, the less often the more of them there are. Streams have turns, too, because each event
makes a page fetch, and many at once would keep others waiting. A single stream has its turn at
once. Streams end after a minute, and at once when the process shuts down.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flask import (
    Blueprint,
    Flask,
    Request,
    Response,
    abort,
    current_app,
    jsonify,
    request,
    url_for,
)
from flask.typing import ResponseReturnValue
from itsdangerous import BadSignature, URLSafeSerializer
from markupsafe import Markup

from rollforward.flask.context import Wiring, clients, request_notes, settings
from rollforward.flask.guards.auth import is_proved
from rollforward.flask.guards.callers import caller
from rollforward.flask.guards.fields import limits
from rollforward.flask.shares import FairRate, OpenStreams, StreamSlot
from rollforward.runtime import Clients
from rollforward.runtime.notices import notices
from rollforward.runtime.topics import ID_CHARS, version

bp = Blueprint("rollforward_live", __name__, url_prefix="/updates")

MAX_TOKEN_CHARS = 2_000
MAX_ID_CHARS = 400
MAX_WATCHED = 12  # Tokens of a stream.
# The id of a token in a list that is not signed, or not any more.
GONE = "gone"
LOOK_EVERY_S, MIN_PAUSE_S = 0.2, 0.001
# A listener that has gone is found out by the next write.
HEARTBEAT_S = 5.0
STREAM_S = 60.0
# Of a script whose stream has ended.
RECONNECT_MS = 500
# Pages poll at this interval, as long as those of one process ask no more often than this in all.
FAST_MS, SLOW_MS = 400, 15_000
ASKED_PER_S = 10
# Events that the streams of a process send, in all.
TOLD_PER_S = 10

# Returns the topic that a request changes; None: no topic.
TopicOf = Callable[[Request], str | None]
Topics = Sequence[str]


@dataclass(frozen=True)
class Watched:
    """Requests whose paths begin with `start`, and the topic that each of them changes."""

    start: str
    topic: str | TopicOf


@dataclass
class Live:
    """An app's open streams, the turns of its pages, and its topics by path."""

    streams: OpenStreams
    asking: FairRate = field(default_factory=lambda: FairRate(ASKED_PER_S, SLOW_MS / 1000))
    telling: FairRate = field(default_factory=lambda: FairRate(TOLD_PER_S, SLOW_MS / 1000))
    watched: list[Watched] = field(default_factory=list)
    # Monotonic: if it were put back, turns and ends of streams would be an hour away.
    elapsed_s: Callable[[], float] = time.monotonic


def register(app: Flask) -> None:
    """Mount the endpoints, and publish what requests change."""
    app.register_blueprint(bp)
    wiring: Wiring = app.extensions["wiring"]
    app.extensions["live"] = Live(OpenStreams(wiring.settings.live_streams))
    app.context_processor(lambda: {"updates": updates})

    @app.after_request
    def publish(response: Response) -> Response:
        if request.method == "POST" and _can_have_changed(response):
            for topic in sorted(_changed_topics(app.extensions["live"])):
                notices(clients()).publish(topic)
        return response


def _changed_topics(live: Live) -> set[str]:
    """Return the topics that this request changes."""
    path = request.path  # Once: to look for it takes longer than to compare it.
    topics = (
        watched.topic if isinstance(watched.topic, str) else watched.topic(request)
        for watched in live.watched
        if path.startswith(watched.start)
    )
    return {topic for topic in topics if topic is not None}


def _can_have_changed(response: Response) -> bool:
    """Return whether a request was taken; a delivery that failed may have committed before."""
    return response.status_code < 400 or is_proved()


def watch(app: Flask, topic: str | TopicOf, *paths: str) -> None:
    """Publish a topic after each POST to a path that begins like one of these: forms, and tasks.

    Args:
        topic: The topic, or a function that returns the topic of a request, as `run_topic` does.
    """
    app.extensions["live"].watched += [Watched(path, topic) for path in paths]


def run_topic(run_id: str) -> str:
    """Return the topic of a run of continuations."""
    return f"run:{run_id}"


def topic_of_run(task: Request) -> str | None:
    """Return the topic of the run that a task belongs to."""
    run_id = request_notes().get("task_run")
    return run_topic(run_id) if run_id else None


def updates(*topics: str) -> Markup:
    """Return the attributes for a template's live element.

    Without memcached there are none, and the script fetches the element itself.
    """
    if settings().memcached is None:
        return Markup()
    address = url_for("rollforward_live.latest", token=_tokens().dumps(topics))
    streams = "yes" if settings().live_streams else "no"
    return Markup('data-updates="{}" data-streams="{}"').format(address, streams)


@bp.get("/<token>")
@limits(after=1_000)
def latest(token: str) -> ResponseReturnValue:
    """Return the id of the last change, which the caller compares with its own."""
    topics, live = _topics(token), _live()  # A token that is none takes nobody's turn.
    if topics is None:
        abort(404)
    again_s = live.asking.wait_s(live.elapsed_s(), _caller(), FAST_MS / 1000)
    return jsonify(id=_ids(clients(), [topics]), again_ms=round(again_s * 1000))


@bp.get("/<tokens>/events")
@limits(after=1_000)
def events(tokens: str) -> ResponseReturnValue:
    """Send changes as server-sent events: of one page, or of several with a comma in between."""
    listed = tokens.split(",")
    if len(listed) > MAX_WATCHED:
        abort(400)
    pages, live = [_topics(token) for token in listed], _live()
    if all(page is None for page in pages):
        abort(404)
    seen = request.headers.get("Last-Event-ID") or request.args.get("after", "")
    if len(seen) > MAX_ID_CHARS:
        abort(400)
    # A HEAD request would never read its stream, nor end it.
    place = live.streams.enter(_caller()) if request.method == "GET" else None
    if place is None:
        return "", 503, {"Retry-After": "60"}
    stream = _stream(clients(), live, place, pages, seen)
    response = Response(stream, content_type="text/event-stream")
    response.call_on_close(lambda: live.streams.leave(place))
    response.headers["X-Accel-Buffering"] = "no"
    return response


def _stream(
    clients: Clients, live: Live, place: StreamSlot, pages: Sequence[Topics | None], seen: str
) -> Iterator[bytes]:
    began = beat = live.elapsed_s()
    turn_at: float | None = None  # To tell of a change.
    yield f"retry: {RECONNECT_MS}\n\n".encode()
    while not (live.streams.is_closing or place.is_ending):
        now_s, pause_s = live.elapsed_s(), LOOK_EVERY_S
        if now_s - began > STREAM_S:
            return
        if turn_at is None and _ids(clients, pages) != seen:
            turn_at = now_s + live.telling.wait_s(now_s, place.caller)
        if turn_at is not None and now_s > turn_at - MIN_PAUSE_S:
            seen, beat, turn_at = _ids(clients, pages), now_s, None
            yield f"id: {seen}\nevent: changed\ndata: {seen}\n\n".encode()
        elif turn_at is not None:
            pause_s = min(pause_s, turn_at - now_s)
        elif now_s - beat > HEARTBEAT_S:
            beat = now_s
            yield b":\n\n"
        clients.clock.sleep(pause_s)


def _ids(clients: Clients, pages: Sequence[Topics | None]) -> str:
    """Return an id for each page, which differs after each publication of one of its topics."""
    topics = {topic for page in pages for topic in page or ()}
    versions = {topic: version(clients.cache, topic) for topic in topics}
    return ",".join(_id(versions, page) for page in pages)


def _id(versions: Mapping[str, str], page: Topics | None) -> str:
    if page is None:
        return GONE
    joined = "-".join(versions[topic] for topic in page)
    return hashlib.sha256(joined.encode()).hexdigest()[:ID_CHARS]


def _topics(token: str) -> Topics | None:
    """Return the topics of a token; None: this app has not signed it, or does not any more."""
    if len(token) > MAX_TOKEN_CHARS:
        return None
    try:
        topics: list[str] = _tokens().loads(token)
    except BadSignature:
        return None
    return topics


def _tokens() -> URLSafeSerializer:
    """Return the signer of topics: it signs by the first key and accepts all of them."""
    return URLSafeSerializer(list(reversed(settings().secret_keys)), salt="live updates")


def _caller() -> str:
    return caller(settings().platform)


def _live() -> Live:
    return current_app.extensions["live"]  # type: ignore[no-any-return]
