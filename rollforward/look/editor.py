"""Links from code to the developer's editor: on the developer's own machine only.

The variable ROLLFORWARD_EDITOR is the URL of a place in a file, with {path} and {line}. Default is
Visual Studio Code; for JetBrains set "idea://open?file={path}&line={line}".
"""

import inspect
import os
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

_DEFAULT = "vscode://file/{path}:{line}"
_PLACE = re.compile(r'File "(?P<path>/[^"\n<>]+)", line (?P<line>\d{1,7})')


def editor_url(path: str, line: int) -> str:
    """Return the URL that opens a place in the editor.

    >>> editor_url("/app/a b.py", 7)
    'vscode://file//app/a%20b.py:7'
    """
    template = os.environ.get("ROLLFORWARD_EDITOR") or _DEFAULT
    return template.replace("{path}", quote(path)).replace("{line}", str(line))


def url_of_code(function: Callable[..., Any]) -> str:
    """Return the URL that opens a function in the editor; "": its source is not a file."""
    plain = inspect.unwrap(getattr(function, "func", function))  # Of a functools.partial.
    try:
        path, (_, line) = inspect.getsourcefile(plain), inspect.getsourcelines(plain)
    except (OSError, TypeError):
        return ""
    return editor_url(path, line) if path else ""


def with_links(traceback: str) -> Markup:
    """Return a traceback as HTML, whose places in files open in the editor.

    >>> print(with_links('File "/app/x.py", line 3, in f: <b>'))
    File <a href="vscode://file//app/x.py:3">&#34;/app/x.py&#34;, line 3</a>, in f: &lt;b&gt;
    """
    parts, end = [], 0
    for match in _PLACE.finditer(traceback):
        parts.append(escape(traceback[end : match.start()]))
        url = editor_url(match["path"], int(match["line"]))
        text = match[0].removeprefix("File ")
        parts.append(Markup('File <a href="{}">{}</a>').format(url, text))
        end = match.end()
    return Markup("").join([*parts, escape(traceback[end:])])
