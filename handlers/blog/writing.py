"""Pages of the blog for writers: posts, comments, the author's name, samples.

An author is an id that no visitor can choose and a display name, in the signed cookie of the
session. The first form of a visitor sets them. There is no password, because the demo has no
secrets. For another author's post or comment the answer is 404.
"""

from __future__ import annotations

import hmac

from flask import Blueprint, abort, flash, redirect, render_template, request, session, url_for
from flask.typing import ResponseReturnValue

from handlers.blog.routes import (
    address_of,
    anchor_of,
    author,
    comments_topic,
    page_tokens,
    post_or_404,
    post_page,
)
from handlers.shared.formatting import clean_html
from handlers.shared.forms import id_in_form
from models.blog import Post
from pipelines.blog import comments, posts, samples
from pipelines.blog.comments import UnknownCommentError
from pipelines.blog.cost import costs
from pipelines.blog.drafts import Author, BadDraftError, Draft, comment_of, draft_of, name_of
from pipelines.blog.front import NEWEST, newest
from pipelines.blog.markdown import html_of
from pipelines.blog.posts import DEMO, UnknownPostError
from pipelines.blog.samples import BlogNotEmptyError
from rollforward.flask.context import clients, settings
from rollforward.flask.guards.fields import limits
from rollforward.query_cache import invalidate

bp = Blueprint("blog_writing", __name__, url_prefix="/blog")

FIELDS = ("title", "body", "tags")
# A text that is somewhat too long comes back with its form, and a browser sends line breaks as two.
POST_LIMITS = {"title": 1_000, "body": 100_000, "tags": 1_000, "name": 1_000}


# Posts


@bp.get("/new")
def new() -> ResponseReturnValue:
    """Show an empty form for a post."""
    return _form({}, {}, 200)


@bp.post("/posts")
@limits(**POST_LIMITS)
def create() -> ResponseReturnValue:
    """Publish a post, once for each form; or show how it will look."""
    form_id = id_in_form()
    form = _fields()
    try:
        draft = draft_of(**{field: form[field] for field in FIELDS})
        writer = _author_in_form(form_id)
    except BadDraftError as error:
        return _form(form, dict(error.errors), 400)
    if "preview" in request.form:
        return _form(form, {}, 200, preview=draft)
    try:
        number = posts.create_post(clients(), DEMO, form_id, writer, draft)
    finally:  # It may be there although its commit was not answered.
        invalidate(clients(), NEWEST)
    _sign_in(writer, form_id, posts.author_id_of(DEMO, number))
    return redirect(address_of(number), 303)


@bp.get("/<number>/edit")
def edit(number: str) -> ResponseReturnValue:
    """Show the form of a post, to its author."""
    post = _own_or_404(number)
    form = {"title": post.title, "body": post.body, "tags": ", ".join(post.tags)}
    return _form(form, {}, 200, post=post)


@bp.post("/<number>/edit")
@limits(**POST_LIMITS)
def save(number: str) -> ResponseReturnValue:
    """Save the author's changes, or show a preview."""
    post, form = _own_or_404(number), _fields()
    try:
        draft = draft_of(**{field: form[field] for field in FIELDS})
    except BadDraftError as error:
        return _form(form, dict(error.errors), 400, post=post)
    if "preview" in request.form:
        return _form(form, {}, 200, post=post, preview=draft)
    try:
        posts.change_post(clients(), DEMO, post.number, _author_or_404(), draft)
    except UnknownPostError:
        abort(404)
    finally:  # It may be changed although its commit was not answered.
        invalidate(clients(), NEWEST)
    return redirect(address_of(post.number), 303)


@bp.post("/<number>/delete")
def delete(number: str) -> ResponseReturnValue:
    """Delete a post, for its author."""
    post = _own_or_404(number)
    try:
        posts.delete_post(clients(), DEMO, post.number, _author_or_404())
    except UnknownPostError:
        abort(404)
    finally:  # It may be deleted although its commit was not answered.
        invalidate(clients(), NEWEST)
    flash("The post was deleted. Its comments are deleted in the background.")
    return redirect(url_for("blog.front"), 303)


def _form(
    form: dict[str, str],
    errors: dict[str, str],
    status: int,
    *,
    post: Post | None = None,
    preview: Draft | None = None,
) -> ResponseReturnValue:
    html = render_template(
        "blog/edit.html",
        form=form,
        errors=errors,
        post=post,
        preview=preview,
        preview_html=clean_html(html_of(preview.body)) if preview else None,
        author=author(),
        new_id=request.form.get("id") if form and not post else clients().new_id(),
    )
    return html, status


# Comments


@bp.post("/<number>/comments")
@limits(text=20_000, name=1_000)
def comment(number: str) -> ResponseReturnValue:
    """Add a comment, once for each form."""
    form_id = id_in_form()
    form = {name: request.form.get(name, "") for name in ("text", "name", "reply_to")}
    post = post_or_404(number)
    try:
        text, writer = comment_of(form["text"]), _author_in_form(form_id)
    except BadDraftError as error:
        return post_page(number, form, dict(error.errors), 400)
    try:
        name = comments.add_comment(
            clients(), post.key, form_id, writer, text, reply_to=form["reply_to"]
        )
    except (UnknownPostError, UnknownCommentError):
        abort(404)
    clients().publish(comments_topic(post.number))
    _sign_in(writer, form_id, comments.author_id_of(name))
    order = name.rpartition("|")[2]
    return redirect(url_for(".permalink", number=number, order=order), 303)


@bp.get("/<number>/comments/<order>")
def permalink(number: str, order: str) -> ResponseReturnValue:
    """Lead to the page of comments that begins with this one."""
    post = post_or_404(number)
    try:
        comment = comments.comment_by_order(post.key.id(), order)
    except UnknownCommentError:
        abort(404)
    token = comments.token_of(page_tokens(), comment)
    address = url_for("blog.post", number=number, page_token=token, _anchor=anchor_of(comment))
    return redirect(address, 302)


@bp.post("/<number>/comments/delete")
def delete_comment(number: str) -> ResponseReturnValue:
    """Delete a comment, for its author: its place stays for the replies."""
    post, writer = post_or_404(number), _author_or_404()
    name = request.form.get("comment", "")
    try:
        comments.delete_comment(clients(), post.key.id(), name, writer)
    except UnknownCommentError:
        abort(404)
    flash("The comment was deleted.")
    return redirect(address_of(post.number, "comments"), 303)


# Who writes


@bp.post("/sign-out")
def sign_out() -> ResponseReturnValue:
    """Forget who writes: the next form asks for a name."""
    session.clear()
    return redirect(url_for("blog.front"), 303)


def _author_in_form(form_id: str) -> Author:
    """Return who writes, by the cookie, or by the name in the form.

    Raises:
        BadDraftError: the name is none.
    """
    return author() or Author(_new_ids(form_id)[0], name_of(request.form.get("name", "")))


def _new_ids(form_id: str) -> list[str]:
    """Return the author's id by a form's id, by the current secret key and by earlier ones.

    A form that is sent again before its cookie arrived gives the same id. Visitors choose the
    form's id, and authors' ids are public, in the addresses of comments. So a secret key makes the
    author's id, and no visitor can craft a form that gives another author's id.
    """
    text = f"blog.author|{form_id}".encode()
    return [hmac.digest(key.encode(), text, "sha256").hex()[:16] for key in settings().secret_keys]


def _sign_in(writer: Author, form_id: str, made_by: str) -> None:
    """Remember the author in a new session, without anything from the old one.

    Args:
        made_by: The author of the form's post or comment: by an earlier key, if it was sent before.
    """
    if author() is None:
        session.clear()
        author_id = made_by if made_by in _new_ids(form_id) else writer.id
        session["blog"] = {"id": author_id, "name": writer.name}


def _author_or_404() -> Author:
    return author() or abort(404)


def _own_or_404(number: str) -> Post:
    post = post_or_404(number)
    try:
        return posts.own_post(DEMO, post.number, author())
    except UnknownPostError:
        abort(404)


def _fields() -> dict[str, str]:
    return {field: request.form.get(field, "") for field in (*FIELDS, "name")}


# Samples


@bp.post("/samples")
def fill() -> ResponseReturnValue:
    """Start to fill an empty blog."""
    try:
        samples.fill(clients(), DEMO)
        invalidate(clients(), NEWEST)  # While they come in, the page is read anew each time.
        costs.invalidate(clients())
    except BlogNotEmptyError:
        flash("The blog has posts already; samples are for an empty one.")
    return redirect(url_for("blog.front"), 303)


# What is kept of the front page


@bp.post("/kept/empty")
def empty() -> ResponseReturnValue:
    """Delete the cached front page, and the count of how often it was served."""
    if newest(page_tokens()).empty(clients()):
        flash("The cached front page was deleted: the next visitor waits for Datastore.")
    else:
        flash("memcached does not answer, so there is no cached page to delete.")
    return redirect(url_for("blog.front"), 303)
