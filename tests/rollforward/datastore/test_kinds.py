"""Declarations of the kinds and forms of their keys, which every version must share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb

from models import blog, grades, invitations, numbers, sums
from models import counters as clicks
from rollforward.batches import entities as batches
from rollforward.continuations import entities as continuations
from rollforward.counters import entities as counters
from rollforward.flows.rows import entities as flows
from rollforward.fork_join import entities as fork_join
from rollforward.lanes.rows import entities as lanes
from rollforward.materialized_views import entities as materialized_views
from rollforward.outbox import entities as outbox
from rollforward.pull_queues import entities as pull_queues
from rollforward.runtime.sweeps import entities as sweeps
from rollforward.tasks import attempt_entities as attempts
from tests.infra.documents import entity_modules
from tests.infra.memory_datastore import offline
from tests.infra.world import DEPLOYED_REPLICAS

pytestmark = pytest.mark.fast

# What the queries of each kind need. Every other index entry would cost a write of its own.
INDEXED = {
    "BatchState": {"created", "due", "member", "parent", "remove_at", "state"},
    "Comment": {"thread"},
    "ContinuationRun": {"state", "untold", "pages_until", "started"},
    "CounterConfig": {"due"},
    "CounterReceipt": {"expires"},
    "DeadTask": {
        "expires",
        "listed",
        "listed_by_error",
        "listed_by_pattern",
        "listed_by_pattern_error",
        "listed_by_pattern_queue",
        "listed_by_pattern_queue_error",
        "listed_by_queue",
        "listed_by_queue_error",
        "resolved",
    },
    "FlowRun": {"created", "due", "expires", "failed", "other_version_since", "state"},
    "LaneState": {"expires"},
    "LaneTask": {"place"},
    "NumberScratch": {"tens"},
    "NumbersRun": {"started"},
    "Quilt": {"created"},
    "OrderSale": {"created"},
    "OutboxTask": {"tag"},
    "Party": {"created"},
    "Post": {"places"},
    "PullItem": {"dead", "ready", "tagged"},
    "PullReceipt": {"expires"},
    "RowMarker": {"ranks"},
    "SampleStudent": {"grade"},
    "Student": {"grade"},
    "SumAddition": {"expires"},
    "TaskAttempts": {"expires"},
    "TenantRush": {"created"},
    "UploadChunk": {"expires"},
    "WorkOutcome": {"expires"},
    "WorkPack": {"tag"},
    "WorkReceipt": {"expires"},
    "AuditEntry": {"at"},
    "PingDelivery": {"expires"},
    "CancellableTask": {"expires"},
    "DistantTask": {"expires", "waits_until"},
    "ScheduleRow": {"next_at"},
    "StoredArguments": {"expires"},
}
# What an entity is never stored without.
REQUIRED = {
    "BatchPage": {"letters"},
    "BatchResults": {"results"},
    "BatchState": {"created", "keep_s", "policy", "state"},
    "BatchWork": {"digest", "first", "members", "tasks"},
    "Comment": {"author", "author_id", "created", "text", "thread"},
    "CommentReceipt": {"comment"},
    "Comparison": {"asked"},
    "ContinuationHeartbeat": {"expires_at"},
    "ContinuationPage": {"after", "items", "load_from", "progressed_at", "receipts", "updated_at"},
    "ContinuationRun": {"args", "job", "page_size", "spans", "started", "state"},
    "ContinuationSweep": {"after"},
    "ContinuationTotals": {"sums", "updated_at"},
    "CounterConfig": {"generation", "read_shards", "shards"},
    "CounterReceipt": {"commit", "digest", "expires"},
    "DeadTask": {"body", "created", "path", "queue", "reason", "task_name", "updated"},
    "FlowRun": {"args", "created", "started_by", "state"},
    "FlowValue": {"data"},
    "Guest": {"address", "import_id", "import_number", "line", "name"},
    "GuestImport": {"created", "file_name", "party_id", "size_bytes"},
    "LaneState": {"stamp"},
    "LaneTask": {"place", "path", "body", "added"},
    "NumbersRun": {"machine", "started"},
    "OrderCharge": {"number", "state", "asked", "refunds"},
    "OrderCard": {"number", "stage", "changed"},
    "OrderShelf": {"stock", "reserved"},
    "OrderSale": {"created", "orders", "stock", "patience_s", "courier", "pace"},
    "Quilt": {"created", "edge", "pieces", "palette", "pattern", "pace_ms"},
    "QuiltPiece": {"batch"},
    "QuiltSquare": {"painted", "worker", "took_ms", "deliveries"},
    "OutboxLease": {"ends", "owner"},
    "OutboxTask": {"body", "path", "queue"},
    "Party": {"created", "host", "place", "title", "when"},
    "Post": {"author", "author_id", "body", "created", "title", "updated"},
    "PostReceipt": {"number"},
    "PullItem": {"added_at", "payload"},
    "PullReceipt": {"digest", "expires", "item"},
    "RowMarker": {"measures", "sequence"},
    "SampleStudent": {"grade", "name", "points"},
    "SourceMarker": {"contributions", "sequence"},
    "StreamChunk": {"body"},
    "StreamDead": {"body"},
    "StreamHead": {"body"},
    "StreamIds": {"body"},
    "StreamInterval": {"body"},
    "StreamLog": {"body"},
    "StreamSlab": {"body"},
    "StreamSource": {"body"},
    "StreamState": {"body"},
    "StreamSubscription": {"body"},
    "Student": {"grade", "name", "points"},
    "Sum": {"created"},
    "SumAddition": {"amount"},
    "SweepMark": {"at"},
    "TaskAttempts": {"expires", "first"},
    "Teacher": {"grade", "name"},
    "TenantRush": {
        *("created", "way", "flood", "behind", "tasks", "chosen", "rule", "pace", "dead", "sent"),
    },
    "TenantTally": {"times", "repeats"},
    "UploadChunk": {"content", "expires"},
    "ViewCatalog": {"views"},
    "ViewRow": {"applied", "counts", "fingerprint", "sums"},
    "WorkOutcome": {"expires", "results"},
    "WorkPack": {"batch_key", "items"},
    "WorkReceipt": {"digest", "expires", "pack", "position"},
    "ArgumentsChunk": {"data"},
    "AuditEntry": {"action", "at", "operator", "result", "role", "target"},
    "PingDelivery": {"expires", "seconds"},
    "CancellableTask": {"expires", "state"},
    "DistantTask": {"body", "due", "path", "queue"},
    "ScheduleRow": {"cron", "revision", "tz"},
    "StoredArguments": {"chunks", "size"},
}


def kinds() -> Iterator[type[ndb.Model]]:
    for module in entity_modules():
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, ndb.Model):
                yield value


def properties_that(holds: Callable[[Any], bool]) -> dict[str, set[str]]:
    """Return the properties for which something holds, by kind, if it has any."""
    properties = {
        kind._get_kind(): {name for name, prop in kind._properties.items() if holds(prop)}
        for kind in kinds()
    }
    return {kind: names for kind, names in properties.items() if names}


def test_only_what_is_queried_is_indexed() -> None:
    """A query that a kind states has its index, and nothing else costs one."""
    assert properties_that(lambda prop: prop._indexed) == INDEXED


def test_numbers_begin_at_zero_and_flags_are_down() -> None:
    """A new number is zero; parties, batches and flows begin at one."""
    begin = {
        f"{kind._get_kind()}.{name}": prop._default
        for kind in kinds()
        for name, prop in kind._properties.items()
        if isinstance(prop._default, int)
    }

    nonempty = {name: value for name, value in begin.items() if value}
    assert nonempty == {"BatchState.generation": 1, "FlowRun.generation": 1, "Party.change": 1}
    assert begin["WorkPack.failures"] == begin["DeadTask.resolved"] == 0


def test_what_no_entity_is_stored_without() -> None:
    """An entity that lacks it is an error where it is made, and not where it is read."""
    assert properties_that(lambda prop: prop._required) == REQUIRED


KEYS: list[tuple[Callable[[], Any], tuple[str, ...]]] = [
    (lambda: attempts.attempts_key("a"), ("TaskAttempts", "a")),
    (lambda: batches.state_key("b:1"), ("BatchState", "b:1")),
    (lambda: batches.work_key("b:1:p:000000"), ("BatchWork", "b:1:p:000000")),
    (lambda: batches.page_key("b:1:p:000000"), ("BatchPage", "b:1:p:000000")),
    (lambda: batches.results_key("b:1:p:000000", 7), ("BatchResults", "b:1:p:000000:000007")),
    (lambda: blog.index_key("demo"), ("BlogIndex", "demo")),
    (lambda: blog.post_key("demo", 7), ("Post", "demo|0000000007")),
    (lambda: blog.receipt_key("f"), ("PostReceipt", "f")),
    (lambda: blog.comment_receipt_key("f"), ("CommentReceipt", "f")),
    (lambda: blog.commenter_key("demo", "u"), ("Commenter", "demo|u")),
    (
        lambda: blog.comment_key("demo|0000000007", "1903824000000000!u!0000000000000001", "u"),
        ("Comment", "demo|0000000007|2|1903824000000000!u!0000000000000001"),
    ),
    (lambda: continuations.run_key("r"), ("ContinuationRun", "r")),
    (lambda: continuations.page_key("r", 7, 42), ("ContinuationPage", "r:0007:00000042")),
    (lambda: continuations.heartbeat_key("p", "o"), ("ContinuationHeartbeat", "p:o")),
    (lambda: continuations.sweep_key("s"), ("ContinuationSweep", "s")),
    (lambda: continuations.totals_keys("r")[7], ("ContinuationTotals", "r:7")),
    (lambda: lanes.state_key("l|k"), ("LaneState", "l|k")),
    (lambda: lanes.task_key("l|k|7-a"), ("LaneTask", "l|k|7-a")),
    (lambda: flows.run_key("f|i"), ("FlowRun", "f|i")),
    (lambda: flows.value_key("f|i", "o", 3), ("FlowValue", "f|i|o|0003")),
    (lambda: clicks.loads_key(), ("ClickLoads", "clicks")),
    (lambda: clicks.switch_key(), ("ClickSwitch", "write-limit")),
    (lambda: clicks.writer_key("l", "sharded", 3), ("ClickWriter", "l|sharded|03")),
    (lambda: counters.config_key("likes", "k"), ("CounterConfig", "005a1c6c|likes|k")),
    (lambda: counters.shard_key("likes", "k", 7), ("CounterShard", "c03360f5|likes|007|k")),
    (lambda: counters.total_key("likes", "k"), ("CounterTotal", "005a1c6c|likes|k")),
    (
        lambda: counters.receipt_key("likes", "k", "r"),
        ("CounterReceipt", "884102902f8da70db723a18d7ef80a261bb63639"),
    ),
    (
        lambda: counters.receipt_key("likes", None, "r"),
        ("CounterReceipt", "1e320ffb17c5d7d94938027315d82d624137a937"),
    ),
    (lambda: fork_join.pack_key("p"), ("WorkPack", "p")),
    (lambda: fork_join.outcome_key("p"), ("WorkOutcome", "p")),
    (
        lambda: fork_join.receipt_key("q", "k", "r"),
        ("WorkReceipt", "207b4b7c92b631514eaa8148fe12fc28d7fb9c59"),
    ),
    (lambda: pull_queues.item_key("q", "i"), ("PullItem", "q|i")),
    (
        lambda: pull_queues.receipt_key("q", "k"),
        ("PullReceipt", pull_queues.digest_of("q", "k")),
    ),
    (lambda: grades.student_key("demo", "s"), ("Student", "demo:s")),
    (lambda: grades.student_key("sample-9", "s"), ("SampleStudent", "sample-9:s")),
    (lambda: grades.teacher_key("demo", "t"), ("Teacher", "demo:t")),
    (lambda: invitations.party_key("p"), ("Party", "p")),
    (lambda: numbers.numbers_run_key("r"), ("NumbersRun", "r")),
    (lambda: numbers.scratch_key("put", 7), ("NumberScratch", "put-0007")),
    (
        lambda: invitations.guest_key("p", "Ada@example.org"),
        ("Guest", "p:cfe00dde46ef942601ffafb9"),
    ),
    (lambda: materialized_views.row_key("t.1.1", '"r"'), ("ViewRow", 't.1.1:"r"')),
    (lambda: materialized_views.catalog_key("g", 3), ("ViewCatalog", "g:03")),
    (lambda: materialized_views.catalog_key("g", DEPLOYED_REPLICAS - 1), ("ViewCatalog", "g:63")),
    (lambda: materialized_views.catalog_keys("g")[-1], ("ViewCatalog", "g:02")),
    (
        lambda: materialized_views.marker_key(ndb.Key("Pupil", "ada")),
        ("Pupil", "ada", "SourceMarker", "m"),
    ),
    (
        lambda: materialized_views.row_marker_key(ndb.Key("ViewRow", "r"), "Pupil:x"),
        ("ViewRow", "r", "RowMarker", "Pupil:x"),
    ),
    (lambda: outbox.outbox_key("o"), ("OutboxTask", "o")),
    (lambda: outbox.lease_key("a"), ("OutboxLease", "a")),
    (lambda: sums.sum_key("s"), ("Sum", "s")),
    (lambda: sums.directory_key(), ("SumDirectory", "all")),
    (lambda: sums.loads_key("s"), ("SumLoads", "s")),
    (lambda: sums.tally_key("s", 3), ("SumTally", "s|03")),
    (lambda: sums.api_tally_key("s", 3), ("SumTally", "s|api|03")),
    (lambda: sums.addition_key("s", "f"), ("SumAddition", "s|f")),
    (lambda: sums.writer_key("s", "l", 3), ("LoadWriter", "s|l|03")),
    (lambda: sweeps.mark_key("outbox"), ("SweepMark", "outbox")),
]


@pytest.mark.parametrize(("key", "path"), KEYS)
def test_keys_are_written_alike_in_each_version(
    key: Callable[[], Any], path: tuple[str, ...]
) -> None:
    """The next version finds stored rows and receipts under the same keys."""
    with offline():
        assert key().flat() == path


def test_the_digests_of_what_is_shared_are_alike_in_each_version() -> None:
    """An epoch's tag, the beginning of a rank: two versions write and read them side by side."""
    with offline():
        row = materialized_views.row_key("t.1.1", "1")
        assert fork_join.key_hash_of("q", "k") == "6981413a"
        assert materialized_views.rank_prefix(row, "points") == "1a1ace757b7efffc5ce93c31|"


EPOCH = "c0ffee012345.20300501T120000000000.1a2b3c4d"


def test_ids_are_read_as_they_are_written() -> None:
    """An epoch, a pack and a row of the outbox: what is in their keys is known without them."""
    pack, row = f"q|{EPOCH}|3|7|id", "c|20300501T120000000000|h|c0ffee|0003|1a2b3c4d"

    assert fork_join.EpochId.parse(EPOCH).text == EPOCH
    assert fork_join.PackId.parse(pack) == fork_join.PackId("q", EPOCH, 3, 7, "id")
    assert fork_join.PackId.parse(pack).text == pack
    assert outbox.RowId.parse(row).text == row
    assert outbox.RowId.read(row) == outbox.RowId.parse(row)


def test_an_item_of_a_pack_has_a_place_of_its_own() -> None:
    """A lone item has the key of its pack. A parked item has a key of its own."""
    pack, alone = fork_join.PackId("q", EPOCH, 3, 7, "id"), fork_join.PackId("q", EPOCH, 1, 7, "id")

    assert pack.single(2).text == f"q|{EPOCH}|1|7|id.2"
    assert alone.single(0) == alone
    assert alone.parked.text == f"parked:q|{EPOCH}|1|7|id"


def test_a_key_tells_what_it_is_of() -> None:
    """A person's school and id, a page's chain and number."""
    with offline():
        student = grades.Student(key=grades.student_key("demo", "s:1"))
        teacher = grades.Teacher(key=grades.teacher_key("demo", "t:1"))
        page = continuations.ContinuationPage(key=continuations.page_key("r", 7, 42))

        assert (student.school, student.student_id) == ("demo", "s:1")
        assert (teacher.school, teacher.teacher_id) == ("demo", "t:1")
        assert (page.chain, page.number) == (7, 42)


@pytest.mark.parametrize(
    "text",
    [
        "",
        EPOCH.removeprefix("c"),
        EPOCH.replace("c0ffee", "cOffee"),
        EPOCH.replace("0501", "0531T"),
        EPOCH.removesuffix("d"),
        EPOCH.replace("1a2b3c4d", "1a2b3c4x"),
        f"{EPOCH}.",
    ],
)
def test_what_is_no_epoch_is_not_read_as_one(text: str) -> None:
    """memcached may return any text, and a key may be from any code."""
    with pytest.raises(ValueError, match=r"not an epoch|unpack|must be like"):
        fork_join.EpochId.parse(text)
