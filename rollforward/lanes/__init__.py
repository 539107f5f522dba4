"""Lanes: tasks wait by key, and each key has its own order, limit, rate and share of a queue.

    BY_USER = rf.Lane("by-user", queue="default", order=True)

    notify.enqueue(notify.bind("ada", "Hello"), lane=BY_USER("ada"))

    def body() -> None:
        order.put()
        rf.enqueue(notify, notify.bind("ada", "Ordered"), lane=BY_USER("ada"))

Cloud Tasks has one line for a queue, and limits for the whole of it: the ten thousand tasks of one
tenant hold up everybody. In a lane a task is a row, in the line of its key. A delivery claims a key
and runs some of its tasks, for half a second. Then the next key has its turn.

1. A task is added: one row, alone or with the caller's transaction, and a hint to run it.
2. A hint is delivered: it claims the first tasks of the key by one commit, and runs them.
3. A task that is done is deleted, a quick one together with others. One that fails waits for its
   time, and one that can never work becomes a dead task.
4. The claim is given back by one commit. If more tasks wait, there is another hint.

    order=True      the tasks of a key run one after the other, in the order of their commits, also
                    over retries; a dead task lets the next one pass, or blocks the key (`on_dead`)
    limit=n         at most n tasks of a key run at a time
    rate=Rate(10)   at most ten tasks of a key begin in a second, and a burst
    weight=2        each key has turns twice as long

A claim expires by what others see, and not by a clock (`runs/claims.py`).

Lost on failure: nothing. A task runs at least once, as every task: if its worker dies before the
deletion, it runs again. That is the task at work, and those before it that took 20 ms in all.
Cost of a task: its row and the deletion, and a share of the claim's two writes among the tasks of a
turn. A key without tasks costs nothing; with a rate it keeps a row for a day.

Routes: POST /tasks/lanes/<name>; GET /cron/lanes/sweep.
Source: deficit round robin, M. Shreedhar and G. Varghese, 1995; leases by observation: the lock
client of DynamoDB, Amazon, 2017.
"""

from rollforward.lanes.declaration import Lane, LaneKey
from rollforward.lanes.errors import BadLaneError, LaneBusyError
from rollforward.lanes.gathered.calls import Call
from rollforward.lanes.gathered.declaration import Gathered, debounced, throttled, unique
from rollforward.lanes.rate import Rate

__all__ = [
    "BadLaneError",
    "Call",
    "Gathered",
    "Lane",
    "LaneBusyError",
    "LaneKey",
    "Rate",
    "debounced",
    "throttled",
    "unique",
]
