"""Names of tasks, made of parts, and the sizes that a task may have."""

from __future__ import annotations

import hashlib
import json

from rollforward.tasks.errors import TooLargeError

# Of a message that a row carries: with others in a commit, and as text within text.
MAX_BODY_BYTES = 100_000
# Of a message that goes to Cloud Tasks at once. The quota page says 1 MiB for a task of any target,
# and the service took 1,048,569 bytes when measured: the rest is for name, URL, headers and token.
MAX_TASK_BYTES = 1_000_000
# Of arguments, stored in rows.
MAX_ARGUMENTS_BYTES = 10_000_000
# The same in a transaction, with all else that it commits: the service takes 10 MiB, the emulators
# 4 MiB.
MAX_COMMITTED_BYTES = 4_000_000
MAX_NAME_PARTS_BYTES = 2_000


def hashed_name(*parts: str | int) -> str:
    """Return a task id for the parts; different parts give different ids.

    >>> hashed_name("page", "run-1", 2) == hashed_name("page", "run-1", 2)
    True
    >>> hashed_name("a", "11") == hashed_name("a1", "1")
    False
    """
    exact = json.dumps(parts, ensure_ascii=True).encode()
    if len(exact) > MAX_NAME_PARTS_BYTES:
        raise TooLargeError(
            f"name must have at most {MAX_NAME_PARTS_BYTES} bytes, got {len(exact)}"
        )
    return hashlib.sha256(exact).hexdigest()[:40]
