"""Pages of the blog for readers: lists, a post with its comments, the feed, the costs."""

from __future__ import annotations

import datetime
import re
import time
import uuid
from typing import Any

from flask import Blueprint, abort, make_response, render_template, request, session, url_for
from flask.typing import ResponseReturnValue
from itsdangerous import BadSignature, URLSafeSerializer

from handlers.blog.stage import books_of, closing_of, costs_of
from handlers.shared.formatting import clean_html
from handlers.shared.live import live_part
from handlers.shared.source_excerpts import Excerpt, excerpt
from handlers.shared.stage import Stage
from models.blog import Comment, Post
from pipelines.blog import comments, cost, posts, samples
from pipelines.blog.comments import Arrivals, UnknownCommentError, arrivals_after, arrivals_from
from pipelines.blog.drafts import Author, is_tag
from pipelines.blog.front import KEPT_S, Front, front_page, newest
from pipelines.blog.markdown import shown
from pipelines.blog.posts import DEMO, UnknownPostError
from pipelines.blog.views import comment_counts
from rollforward.flask.context import clients, settings
from rollforward.flask.guards.fields import limits
from rollforward.paging import BadPageSizeError, BadPageTokenError, PageTokens
from rollforward.query_cache import CachedResult

bp = Blueprint("blog", __name__, url_prefix="/blog")

TABS = ("how", "cache", "code")
FEED_POSTS = 20
NUMBER = re.compile(r"[1-9][0-9]{0,9}")
MAX_ARRIVALS_CHARS = 4_000
MAX_PAGE_TOKEN_CHARS = 2_500
OTHER_LIST = "This address belongs to another list. Start at the first page."


@bp.get("")
@limits(page_token=MAX_PAGE_TOKEN_CHARS)
def front() -> ResponseReturnValue:
    """Show the newest posts, or an empty blog with a button that fills it."""
    return _list("")


@bp.get("/tags/<tag>")
@limits(page_token=MAX_PAGE_TOKEN_CHARS)
def tagged(tag: str) -> ResponseReturnValue:
    """Show the newest posts with a tag."""
    if not is_tag(tag):
        abort(404)
    return _list(tag)


def _list(tag: str) -> ResponseReturnValue:
    is_first = not request.args.get("page_token")
    tab = request.args.get("tab", TABS[0])
    if tab not in TABS:
        abort(404)
    filling = samples.status(clients(), DEMO) if is_first and not tag else None
    cost_before, started = clients().meter.cost(), time.perf_counter()
    front, reading = _read(tag, is_filling=bool(filling and filling.is_running))
    took_s, spent = time.perf_counter() - started, clients().meter.cost() - cost_before
    if tag and is_first and not front.posts:
        abort(404)
    stats = newest(page_tokens()).stats(clients()) if reading else None
    return render_template(
        "blog/list.html",
        tag=tag,
        front=front,
        is_first=is_first,
        filling=filling,
        balance=books_of(filling),
        can_fill=is_first and not front.posts and samples.can_fill(DEMO),
        reading=reading,
        stage=Stage(closing=closing_of(reading), cost=costs_of(spent, took_s, reading, stats)),
        new_id=clients().new_id(),
        page_size=request.args.get("page_size") or None,
        tab=tab,
        excerpts=_code() if tab == "code" else [],
        kept_s=KEPT_S,
    )


def _code() -> list[Excerpt]:
    """Return the lines that matter, as they run."""
    return [
        excerpt("pipelines.blog.posts", "create_post", "A post takes its number"),
        excerpt("pipelines.blog.front", "front_page", "What the first page reads"),
        excerpt("pipelines.blog.front", "newest", "A cached result for all visitors"),
        excerpt("pipelines.blog.comments", "threads_page", "A page of comments, merged"),
    ]


def _read(tag: str, *, is_filling: bool) -> tuple[Front, CachedResult[Front] | None]:
    """Return a page of a list; and where it came from, if it is the one that everybody shares."""
    if not (tag or is_filling or _page_in_address()):
        reading = newest(page_tokens()).read(clients(), DEMO)
        return reading.value, reading
    try:
        page = front_page(clients(), page_tokens(), DEMO, tag=tag, **_page_in_address())
    except (BadPageTokenError, BadPageSizeError):
        abort(400, OTHER_LIST)
    return page, None


@bp.get("/live")
def live() -> ResponseReturnValue:
    """Return how far the samples are, for the script to put in place."""
    filling = samples.status(clients(), DEMO)
    return live_part("blog/_live.html", filling=filling, balance=books_of(filling))


@bp.get("/<number>")
@limits(page_token=MAX_PAGE_TOKEN_CHARS)
def post(number: str) -> ResponseReturnValue:
    """Show a post with a page of its comments."""
    return post_page(number, {}, {}, 200)


def post_page(
    number: str, form: dict[str, str], errors: dict[str, str], status: int
) -> ResponseReturnValue:
    """Return a post's page, with a form that was sent back if there is one."""
    cost_before, started = clients().meter.cost(), time.perf_counter()
    post = post_or_404(number)
    name = post.key.id()
    address = _page_in_address() if request.method == "GET" else {}
    # Before the comments: what arrives between the two is on the page, and new as well.
    arrivals = arrivals_from(clients(), name)
    try:
        page = comments.threads_page(page_tokens(), name, **address)
    except (BadPageTokenError, BadPageSizeError):
        abort(400, OTHER_LIST)
    count = comment_counts(clients(), [post])[0]
    took_s, spent = time.perf_counter() - started, clients().meter.cost() - cost_before
    reply_to = request.args.get("reply_to", "") or form.get("reply_to", "")
    html = render_template(
        "blog/post.html",
        post=post,
        body=clean_html(shown(clients(), post.body)),
        page=page,
        count=count,
        is_first=not address.get("page_token"),
        page_size=address.get("page_size"),
        reply_to=_comment_named(name, reply_to),
        arrivals=_arrivals_token(name, arrivals),
        took_s=took_s,
        spent=spent,
        author=author(),
        form=form,
        errors=errors,
        new_id=clients().new_id(),
    )
    return html, status


def _comment_named(post: str, name: str) -> Comment | None:
    try:
        return comments.comment_of_post(post, name) if name else None
    except UnknownCommentError:
        return None


@bp.get("/<number>/comments/new")
@limits(since=MAX_ARRIVALS_CHARS)
def arrived(number: str) -> ResponseReturnValue:
    """Show the comments that were written since a page was read."""
    post = post_or_404(number)
    name = post.key.id()
    arrived, arrivals = arrivals_after(clients(), name, _arrivals_in_address(name))
    return render_template(
        "blog/new_comments.html",
        post=post,
        comments=arrived,
        arrivals=_arrivals_token(name, arrivals),
        author=author(),
    )


@bp.get("/feed.atom")
def feed() -> ResponseReturnValue:
    """Return the newest posts as an Atom feed (RFC 4287)."""
    newest = posts.posts_page(page_tokens(), DEMO, page_size=FEED_POSTS).items
    times = [post.updated for post in newest]
    text = render_template(
        "blog/feed.xml",
        posts=newest,
        updated=max(times) if times else datetime.datetime(2008, 5, 28),  # noqa: DTZ001
        id_of=_feed_id,
    )
    response = make_response(text)
    response.headers["Content-Type"] = "application/atom+xml; charset=utf-8"
    return response


def _feed_id(path: str) -> str:
    """Return the id of a feed or an entry: the same for good, and no other app's."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"tag:{settings().project},2008:{path}").urn


@bp.get("/cost")
def page_costs() -> ResponseReturnValue:
    """Show what pages cost, by place and by offset, as measured within the last minute or two."""
    measured = cost.costs.read(clients(), DEMO)
    return render_template("blog/cost.html", costs=measured.value, age_s=measured.age_s)


# What addresses and cookies hold


def post_or_404(number: str) -> Post:
    """Return the post of a number in an address."""
    if not NUMBER.fullmatch(number):
        abort(404)
    try:
        return posts.post_of(DEMO, int(number))
    except UnknownPostError:
        abort(404)


def author() -> Author | None:
    """Return the author by the cookie; None: the visitor has given no name."""
    saved = session.get("blog")
    return Author(saved["id"], saved["name"]) if saved else None


def page_tokens() -> PageTokens:
    """Return the signer of page tokens."""
    return PageTokens(settings().secret_keys)


def _page_in_address() -> dict[str, Any]:
    names = ("page_token", "page_size")
    return {name: request.args[name] for name in names if request.args.get(name)}


def _signer() -> URLSafeSerializer:
    return URLSafeSerializer(list(reversed(settings().secret_keys)), salt="blog.arrivals")


def _arrivals_token(post_name: str, arrivals: Arrivals) -> str:
    numbers = sorted(arrivals.known)
    return str(_signer().dumps([post_name, arrivals.since.isoformat(), numbers]))


def _arrivals_in_address(post_name: str) -> Arrivals:
    sealed = request.args.get("since", "")
    try:
        name, since, numbers = _signer().loads(sealed)
    except BadSignature:
        abort(400, OTHER_LIST)
    if name != post_name:
        abort(400, OTHER_LIST)
    return Arrivals(datetime.datetime.fromisoformat(since), frozenset(numbers))


@bp.app_template_filter()
def anchor_of(comment: Comment) -> str:
    """Return the name of a comment within its page: without what selectors take for their own."""
    order = str(comment.key.id()).rpartition("|")[2]
    return f"c-{order.replace('!', '-')}"


@bp.app_template_filter()
def comments_topic(number: int) -> str:
    """Return what pages of a post watch: its comments."""
    return f"blog:{number}"


def address_of(number: int, anchor: str | None = None) -> str:
    """Return where a post is."""
    return url_for("blog.post", number=number, _anchor=anchor)
