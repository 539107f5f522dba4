"""The newest log records of all services."""

import itertools

import pytest

from rollforward.local.logs.tail import MAX_LINES, LogFilter, LogTail, level_of

TRACEBACK = [
    "ERROR shop: /tasks/ship failed [task default/t7]",
    "Traceback (most recent call last):",
    '  File "shop.py", line 1, in ship',
    "KeyError: 'lamp'",
]


def tail_of(*lines, service="app"):
    """A tail with a second between its lines."""
    tail = LogTail(itertools.count(100).__next__)
    for line in lines:
        tail.add(service, line)
    return tail


def texts(tail, limit=100, **chosen):
    """What a filter lets pass, oldest first."""
    return [record.text for record in reversed(tail.newest(LogFilter(**chosen), limit))]


def test_a_traceback_is_one_record_with_its_level_and_its_task():
    """What follows it is a record of its own, though it has no level."""
    tail = tail_of(*TRACEBACK, "a print of another task")

    printed, failed = tail.newest(LogFilter(), 10)

    assert (failed.level, failed.task, len(failed.lines)) == ("ERROR", "default/t7", 4)
    assert failed.lines[0] == "shop: /tasks/ship failed"
    assert (printed.text, printed.level, printed.task) == ("a print of another task", "INFO", "")


def test_chained_errors_and_messages_of_many_lines_stay_together():
    """The words between two tracebacks, and what is indented or has no word."""
    chained = ["", "The above exception was the direct cause of the following exception:", ""]
    error = ["ERROR x: <_Rpc of", "\tstatus = 4", ">", *TRACEBACK[1:], *chained, *TRACEBACK[1:]]

    assert len(tail_of(*error).newest(LogFilter(), 10)) == 1


def test_services_do_not_take_each_others_lines():
    """Each line belongs to what its own service said before."""
    tail = LogTail()
    tail.add("app", TRACEBACK[0])
    tail.add("mail", "250 to ada@example.com")
    tail.add("app", TRACEBACK[1])

    assert [len(record.lines) for record in tail.newest(LogFilter(), 10)] == [1, 2]


def test_records_are_filtered_by_service_level_text_and_task():
    """Each alone, and together; a level stands for those above it, too."""
    tail = tail_of(*TRACEBACK, "DEBUG x: fine", "WARNING x: slow [task mails/t1]")
    tail.note("cron", "INFO", "/cron/sweep: 200", task="")

    assert texts(tail, service="cron") == ["/cron/sweep: 200"]
    assert texts(tail, level="WARNING", text="SLOW") == ["x: slow"]
    assert len(texts(tail, level="WARNING")) == 2
    assert texts(tail, task="mails/t1") == ["x: slow"]
    assert texts(tail, text="lamp", service="app")[0].endswith("KeyError: 'lamp'")


def test_pages_of_records_show_each_once():
    """From the newest to the oldest, by number."""
    tail = tail_of(*(f"INFO x: {number}" for number in range(10)))
    seen, before = [], 0
    while page := tail.newest(LogFilter(before=before), 3):
        seen += [record.text for record in page]
        before = page[-1].number

    assert seen == [f"x: {number}" for number in reversed(range(10))]


def test_a_service_that_says_much_pushes_out_no_other(monkeypatch):
    """Each keeps its newest; a record and a line are bounded, too."""
    monkeypatch.setattr("rollforward.local.logs.tail.MAX_RECORDS", 5)
    tail = tail_of("INFO x: once")
    for number in range(20):
        tail.add("mail", f"INFO mail: {number}")

    assert texts(tail, service="app") == ["x: once"]
    assert texts(tail, service="mail") == [f"mail: {number}" for number in range(15, 20)]


def test_what_is_kept_has_a_bound_in_memory(monkeypatch):
    """However long the lines are, and however many a record has."""
    monkeypatch.setattr("rollforward.local.logs.tail.MAX_CHARS", 10_000)
    tail = tail_of(*("INFO " + "x" * 9_000 for _ in range(10)), TRACEBACK[0], TRACEBACK[1])
    for _ in range(1000):
        tail.add("app", "  at")

    kept = tail.newest(LogFilter(), 100)

    assert sum(len(record.text) for record in kept) <= 10_000
    assert max(len(record.lines) for record in kept) <= MAX_LINES


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("[2026-11-20 12:00:00 +0000] [7] [INFO] Listening at: http://x", "INFO"),
        ('{"severity": "NOTICE", "message": "ERROR is only a word"}', "INFO"),
        ("{not json", None),
        ("SEVERE: cannot bind", "ERROR"),
        ("INFORMATION about it", None),
        ("x" * 200 + " ERROR: late", None),
        ('{"a":' * 100_000, None),
    ],
)
def test_levels_are_read_as_each_service_writes_them(line, level):
    """gunicorn's, Java's, Python's, and structured ones."""
    assert level_of(line) == level
