"""The JSON API of the console, below `<prefix>/api/v1`.

    GET  /dead-tasks?pattern=&queue=&error=&since=&until=&cursor=&limit=
                                    {"dead_tasks": [...], "next_cursor": "..." or null}
    GET  /dead-tasks/<id>           a dead task with its body and reason
    POST /dead-tasks/<id>:<verb>    replay, delete: {"id": ..., "result": "replayed" or "deleted"}
    POST /dead-tasks:<verb>         replay, delete: {"ids": [...]} or {"filter": {...}}, each of
                                    pattern, queue, error, since, until; 202 {"run": {"pattern",
                                    "id"}}. `{"filter": {}}` takes all
    GET  /runs?pattern=&state=&name=&since=&before=&limit=
                                    {"runs": [...], "next_before": ... or null}
    POST /runs/<pattern>:retry      the failed runs of a pattern with steps, as flows:
                                    {"ids": [...]} or {"all": true, "name": "orders"}, of any name
                                    without it; 202 {"run": {"pattern", "id"}}
    GET  /runs/<pattern>/<id>                 a run with its items
    POST /runs/<pattern>/<id>:<verb>          cancel, resume, retry: {"id": ...}. A flow is retried
                                    from a step by {"from_step": "charge", "runs": 1}: refused
                                    unless its number of `runs`, if given, is that
    GET  /dead-letters/<pattern>/<part>?since=&until=&cursor=&limit=
                                    of a pipeline or a pull queue: {"dead_letters": [...],
                                    "next_cursor": "..." or null}. A page of a time may be short
    GET  /dead-letters/<pattern>/<part>/<id>             a dead letter with its body
    POST /dead-letters/<pattern>/<part>/<id>:<verb>      replay, delete: {"id": ..., "result": ...}
    POST /dead-letters/<pattern>/<part>:<verb>           replay, delete: {"ids": [...]} or
                                    {"all": true}, of a time by "since" and "until"; 202
                                    {"run": {"pattern", "id"}}
    GET  /tasks?queue=&cursor=&limit=         waiting tasks of a queue, as Cloud Tasks lists them
    GET  /outbox?limit=                       the oldest rows of the outbox
    GET  /queues                              {"queues": [...]} with their state and limits
    POST /queues/<queue>:<verb>               pause, resume, purge; rate: {"max_per_s": 5}
    POST /pings                               a task through each queue: 201 {"id": ...,
                                    "queues": [{"queue", "error"}, ...]}; error: why it was not
                                    created, or null
    GET  /pings/<id>                          {"id", "queues": [{"queue", "delivered_after_s"}],
                                    "last_sweep": a time}; null: not yet, or not known
    GET  /lanes                               {"lanes": [...]}, each with its backlog
    GET  /lanes/<name>?state=&after=          {"keys": [...], "next_after": ... or null}; state is
                                    "resting" for keys that are paused or blocked
    GET  /lanes/<name>?key=                   a key with its first tasks
    POST /lanes/<name>:<verb>?key=            pause, resume, drain: {"lane", "key"}; a drain adds
                                    {"deleted": 3, "at_work": 1, "has_more": false}, the others
                                    {"was": "open", "waiting": 0}: paused, blocked or open before
    GET  /lanes/<name>/<key>        the same, and POST ...:<verb>, for a key that no client resolves
                                    as a path: without / at its beginning, and without . and ..
    GET  /schedules?since=&until=&after=      those in the code, with their last runs; of a time,
                                    those whose last tick was in it
    GET  /schedules/<name>?id=                one with its last ten runs
    GET  /schedules/<name>/users?since=&until=&after=    schedules of users, by id; of a time, by
                                    the next tick
    GET  /audit?before=&limit=                {"entries": [...], "next_before": ... or null}

Times are ISO 8601 in UTC. Errors are problem details (RFC 9457). A verb follows a colon, as in
Google's APIs (AIP-136). A change takes `Content-Type: application/json` and no cookies; one with an
`Idempotency-Key` happens once.
"""

from rollforward.console.api.routes import ROUTES, Routes

__all__ = ["ROUTES", "Routes"]
