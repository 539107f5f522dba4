"""Debounce, throttle and unique: the calls of a key are gathered, and one run gets them all.

    @rf.lanes.debounced("digest", wait_s=30, max_s=600)
    def digest(user: str, calls: Sequence[rf.lanes.Call[NewPost]]) -> None:
        ...

    digest.call("ada", NewPost("A1"))

A call is a row, in the line of its key, as a task of any lane (`lanes.rows`). The rows alone say
when their window ends: a call changes no row that another call changes.

1. A call is added: one row, alone or with the caller's transaction, and a hint for the end of the
   window. A mark in memcached lets the calls of a window share their hint.
2. A hint is delivered. If the window is open, there is another hint for its end.
3. At the end the delivery closes the window by one commit: it claims the key, and writes down which
   calls are in the window. From then on a call belongs to the next window.
4. The function runs with those calls. If it fails, it runs again with the same ones.
5. One commit deletes the calls and gives the key back. If the function can never work, the same
   commit keeps a dead task with all of them.

A run has at most 400 calls, and a million bytes of them. The rest of a window has further runs at
once.

Lost on failure: nothing. A run happens at least once, as every task: if its worker dies after the
work, and before the commit of step 5, the function runs again with the same calls.
"""
