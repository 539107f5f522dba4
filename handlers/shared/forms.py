"""Fields of forms and addresses that several demos have: ids, lists, tabs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flask import abort, request

from rollforward.continuations.csv_source import MAX_BYTES

# Of a list that is pasted; a form has at most 512 KiB in all (rollforward/flask/app.py).
MAX_PASTED_CHARS = 500_000
MAX_SHOWN_NAME = 100
ID_PATTERN = re.compile(r"[0-9a-f]{32}")


def id_in_form() -> str:
    """Return the id that the form brought along: what is sent twice is done once."""
    form_id = request.form.get("id", "")
    if not ID_PATTERN.fullmatch(form_id):
        abort(400, "This form is incomplete. Reload the page and try again.")
    return form_id


def open_tab(tabs: Sequence[str]) -> str:
    """Return the open tab by the address; a form that is sent back shows the first one."""
    tab = request.args.get("tab", tabs[0]) if request.method == "GET" else tabs[0]
    return tab if tab in tabs else abort(404)


def about_file(name: str, problem: str, example: str = "") -> str:
    """Return the problem of an uploaded file, with its name as uploaded and an example.

    Args:
        example: A line that the file may have.

    >>> about_file("guests.csv", "the file is empty.", "Ada, ada@example.com")
    '“guests.csv”: the file is empty. Write lines like: Ada, ada@example.com'
    """
    text = f"“{name.rpartition('/')[2][:MAX_SHOWN_NAME]}”: {problem.rstrip('.')}"
    return f"{text}. Write lines like: {example}" if example else text


def uploaded_list() -> tuple[bytes, str]:
    """Return the content of a file, or of text pasted into the form, and its name."""
    file = request.files.get("file")
    if file is not None and file.filename:
        return file.read(MAX_BYTES + 1), file.filename
    return request.form.get("pasted", "").encode(errors="replace"), "pasted text"
