"""Queues: settings, states, updates, lists.

REF is cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2
"""

import pytest
from google.api_core import exceptions
from google.cloud import tasks_v2

from tests.contracts.conftest import PARENT, Cloud

pytestmark = pytest.mark.fast

State = tasks_v2.Queue.State


def make(cloud: Cloud, queue_id: str, **fields: object) -> tasks_v2.Queue:
    """Create a queue."""
    queue = {"name": f"{PARENT}/queues/{queue_id}", **fields}
    return cloud.client.create_queue(parent=PARENT, queue=queue)


def test_defaults_of_a_new_queue(cloud):
    """A new queue has the documented defaults (tasks/docs/configuring-queues)."""
    queue = cloud.client.get_queue(name=cloud.queue)

    limits, retries = queue.rate_limits, queue.retry_config
    assert (limits.max_dispatches_per_second, limits.max_burst_size) == (500, 100)
    assert limits.max_concurrent_dispatches == 1000
    assert (retries.max_attempts, retries.max_doublings) == (100, 16)
    assert retries.min_backoff.total_seconds() == 0.1
    assert retries.max_backoff.total_seconds() == 3600
    assert queue.state == State.RUNNING


def test_settings_of_a_new_queue_are_kept(cloud):
    """CreateQueue keeps what the caller sets (REF#createqueuerequest)."""
    created = make(
        cloud,
        "own",
        rate_limits={"max_dispatches_per_second": 7, "max_concurrent_dispatches": 3},
        retry_config={"max_attempts": -1, "min_backoff": {"seconds": 2}},
    )

    stored = cloud.client.get_queue(name=created.name)
    assert stored == created
    assert stored.rate_limits.max_dispatches_per_second == 7
    assert stored.retry_config.max_attempts == -1
    assert stored.retry_config.min_backoff.total_seconds() == 2


def test_output_only_fields_are_ignored_at_creation(cloud):
    """State and burst are output only (REF#queue, REF#ratelimits)."""
    queue = make(
        cloud,
        "own",
        state=State.PAUSED,
        rate_limits={"max_dispatches_per_second": 500, "max_burst_size": 3},
    )

    assert queue.state == State.RUNNING
    assert queue.rate_limits.max_burst_size == 100


@pytest.mark.parametrize(
    "fields",
    [
        {"rate_limits": {"max_dispatches_per_second": 501}},
        {"rate_limits": {"max_dispatches_per_second": -1}},
        {"rate_limits": {"max_concurrent_dispatches": 5001}},
        {"retry_config": {"max_attempts": -2}},
        {"retry_config": {"max_doublings": -1}},
        {"retry_config": {"min_backoff": {"seconds": 9}, "max_backoff": {"seconds": 8}}},
        {"http_target": {"uri_override": {"host": ""}}},
        {"http_target": {"oidc_token": {"service_account_email": "a@b.c"}}},
    ],
)
def test_settings_out_of_range(cloud, fields):
    """A setting out of its range is INVALID_ARGUMENT (REF#ratelimits, REF#retryconfig)."""
    with pytest.raises(exceptions.InvalidArgument):
        make(cloud, "own", **fields)
    with pytest.raises(exceptions.InvalidArgument):
        cloud.client.update_queue(queue={"name": cloud.queue, **fields})


def test_queue_id_of_100_characters(cloud):
    """A queue id has at most 100 characters (REF#queue)."""
    assert make(cloud, "q" * 100).name.endswith("q" * 100)
    with pytest.raises(exceptions.InvalidArgument):
        make(cloud, "q" * 101)


def test_update_with_mask_changes_only_the_named_field(cloud):
    """UpdateQueue changes the fields of its mask (REF#updatequeuerequest)."""
    before = cloud.client.get_queue(name=cloud.queue)
    queue = {
        "name": cloud.queue,
        "rate_limits": {"max_concurrent_dispatches": 9, "max_dispatches_per_second": 1},
    }

    updated = cloud.client.update_queue(
        queue=queue, update_mask={"paths": ["rate_limits.max_concurrent_dispatches"]}
    )

    assert updated.rate_limits.max_concurrent_dispatches == 9
    assert updated.rate_limits.max_dispatches_per_second == 500
    assert updated.retry_config == before.retry_config


def test_update_without_mask_changes_all_fields(cloud):
    """An empty mask updates every field; what is unset goes back to its default (REF)."""
    cloud.configure(rate_limits__max_concurrent_dispatches=9)

    updated = cloud.client.update_queue(
        queue={"name": cloud.queue, "retry_config": {"max_attempts": 5}}
    )

    assert updated.retry_config.max_attempts == 5
    assert updated.rate_limits.max_concurrent_dispatches == 1000


def test_update_of_parts_of_a_target(cloud):
    """A mask may name a repeated field, and clear a token part by part, as gcloud does (REF)."""
    token = {"service_account_email": "a@b.c", "scope": "s"}
    one, two = ({"header": {"key": "a", "value": value}} for value in "12")
    cloud.configure(http_target={"header_overrides": [one], "oauth_token": token})

    cloud.configure(http_target__header_overrides=[two, one])
    target = cloud.client.get_queue(name=cloud.queue).http_target
    assert [override.header.value for override in target.header_overrides] == ["2", "1"]
    assert target.oauth_token.scope == "s"

    for paths in (["oauth_token.scope", "oauth_token.service_account_email"], ["header_overrides"]):
        mask = {"paths": [f"http_target.{path}" for path in paths]}
        queue = cloud.client.update_queue(queue={"name": cloud.queue}, update_mask=mask)
        assert "oauth_token" not in queue.http_target
    assert "http_target" not in queue


def test_update_creates_a_missing_queue(cloud):
    """UpdateQueue creates the queue if it does not exist (REF#updatequeue)."""
    name = f"{PARENT}/queues/new"

    cloud.client.update_queue(queue={"name": name, "retry_config": {"max_attempts": 5}})

    assert cloud.client.get_queue(name=name).retry_config.max_attempts == 5


def test_update_of_a_deleted_queue(cloud):
    """A deleted queue's name is blocked for UpdateQueue, too (REF#deletequeue)."""
    cloud.client.delete_queue(name=cloud.queue)

    with pytest.raises(exceptions.FailedPrecondition):
        cloud.client.update_queue(queue={"name": cloud.queue})


def test_update_does_not_change_the_state(cloud):
    """UpdateQueue cannot change the state (REF#queue.state)."""
    cloud.client.pause_queue(name=cloud.queue)

    updated = cloud.client.update_queue(queue={"name": cloud.queue, "state": State.RUNNING})

    assert updated.state == State.PAUSED


@pytest.mark.parametrize("path", ["nonsense", "rate_limits.nonsense", "name.nonsense"])
def test_update_with_unknown_path(cloud, path):
    """A mask that names no field is INVALID_ARGUMENT (google.aip.dev/134)."""
    with pytest.raises(exceptions.InvalidArgument, match=path):
        cloud.client.update_queue(queue={"name": cloud.queue}, update_mask={"paths": [path]})


def test_update_to_zero_doublings(cloud):
    """A mask can set max_doublings to zero: the backoff then grows linearly (REF#retryconfig)."""
    cloud.configure(retry_config__max_doublings=0)

    assert cloud.client.get_queue(name=cloud.queue).retry_config.max_doublings == 0


def test_paused_queue_takes_tasks_but_dispatches_none(cloud):
    """A paused queue delivers nothing, and tasks can still be added (REF#pausequeue)."""
    paused = cloud.client.pause_queue(name=cloud.queue)
    cloud.create()

    assert paused.state == State.PAUSED
    assert cloud.begin() == []


def test_resumed_queue_dispatches_again(cloud):
    """A resumed queue dispatches what was added meanwhile (REF#resumequeue)."""
    cloud.client.pause_queue(name=cloud.queue)
    cloud.create()

    resumed = cloud.client.resume_queue(name=cloud.queue)

    assert resumed.state == State.RUNNING
    assert len(cloud.begin()) == 1


def test_purge_deletes_all_tasks(cloud):
    """PurgeQueue deletes the tasks created before, and says when it was called (REF#purgequeue)."""
    cloud.create("a")
    cloud.create_in(60)

    purged = cloud.client.purge_queue(name=cloud.queue)

    assert list(cloud.client.list_tasks(parent=cloud.queue)) == []
    assert purged.purge_time.timestamp() == cloud.now()
    cloud.create()
    assert len(list(cloud.client.list_tasks(parent=cloud.queue))) == 1


def test_deleted_queue_takes_its_tasks_along(cloud):
    """DeleteQueue deletes the queue even if it has tasks in it (REF#deletequeue)."""
    cloud.create("a")
    cloud.client.delete_queue(name=cloud.queue)
    cloud.advance(3 * 86400)

    cloud.client.create_queue(parent=PARENT, queue={"name": cloud.queue})

    assert list(cloud.client.list_tasks(parent=cloud.queue)) == []


def test_deleted_queue_name_is_free_after_three_days(cloud):
    """The tombstone window of a queue's name is up to 3 days (REF#deletequeue)."""
    cloud.client.delete_queue(name=cloud.queue)
    cloud.advance(3 * 86400 - 1)
    with pytest.raises(exceptions.FailedPrecondition):
        cloud.client.create_queue(parent=PARENT, queue={"name": cloud.queue})
    cloud.advance(1)

    cloud.client.create_queue(parent=PARENT, queue={"name": cloud.queue})

    assert cloud.client.get_queue(name=cloud.queue).name == cloud.queue


# --- lists ----------------------------------------------------------------


def test_queues_are_listed_in_lexicographical_order(cloud):
    """Queues are returned in lexicographical order (REF#listqueues)."""
    for queue_id in ("c", "a", "b"):
        make(cloud, queue_id)

    listed = [queue.name.rpartition("/")[2] for queue in cloud.client.list_queues(parent=PARENT)]

    assert listed == ["a", "b", "c", "work"]


def test_queues_are_listed_in_pages(cloud):
    """page_size cuts the list, next_page_token continues it, and the last page has none (REF)."""
    for queue_id in ("a", "b", "c"):
        make(cloud, queue_id)

    pages = list(cloud.client.list_queues(request={"parent": PARENT, "page_size": 3}).pages)

    assert [[q.name.rpartition("/")[2] for q in page.queues] for page in pages] == [
        ["a", "b", "c"],
        ["work"],
    ]
    assert bool(pages[0].next_page_token)
    assert not pages[1].next_page_token


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("state: PAUSED", ["slow"]),
        ("state=RUNNING", ["work"]),
        ("rate_limits.max_dispatches_per_second < 10", ["slow"]),
        ("state=PAUSED AND rateLimits.maxDispatchesPerSecond>=10", []),
        ("name:queues/wo", ["work"]),
    ],
)
def test_queues_are_filtered(cloud, query, expected):
    """A filter compares fields of the queue (REF#listqueuesrequest)."""
    make(cloud, "slow", rate_limits={"max_dispatches_per_second": 1})
    cloud.client.pause_queue(name=f"{PARENT}/queues/slow")

    listed = cloud.client.list_queues(request={"parent": PARENT, "filter": query})

    assert [queue.name.rpartition("/")[2] for queue in listed] == expected


@pytest.mark.parametrize("query", ["state", "nonsense=1", "(state=PAUSED)", "state=PAUSED OR x=1"])
def test_filter_that_is_not_understood(cloud, query):
    """A malformed filter is INVALID_ARGUMENT (google.aip.dev/160)."""
    with pytest.raises(exceptions.InvalidArgument):
        cloud.client.list_queues(request={"parent": PARENT, "filter": query})


def test_page_token_of_another_filter(cloud):
    """It is an error to switch the filter while iterating (REF#listqueuesrequest)."""
    make(cloud, "a")
    first = cloud.client.list_queues(request={"parent": PARENT, "page_size": 1})

    with pytest.raises(exceptions.InvalidArgument):
        cloud.client.list_queues(
            request={
                "parent": PARENT,
                "filter": "state: RUNNING",
                "page_token": first.next_page_token,
            }
        )


# --- places, and what is not served ---------------------------------------


def test_locations(cloud):
    """ListLocations and GetLocation tell the one location (REF, google.cloud.location)."""
    listed = cloud.client.list_locations(request={"name": "projects/demo-local"}).locations
    one = cloud.client.get_location(request={"name": PARENT})

    assert [location.name for location in listed] == [PARENT]
    assert one.location_id == "us-central1"


def test_queue_in_another_location(cloud):
    """Only the emulator's location is served (tasks/docs/dual-overview#locations)."""
    other = "projects/demo-local/locations/europe-west1"

    with pytest.raises(exceptions.InvalidArgument, match="us-central1"):
        cloud.client.create_queue(parent=other, queue={"name": f"{other}/queues/q"})
    with pytest.raises(exceptions.InvalidArgument, match="us-central1"):
        cloud.client.update_queue(queue={"name": f"{other}/queues/q"})
    assert [queue.name for queue in cloud.client.list_queues(parent=PARENT)] == [cloud.queue]


def test_policies_are_stored_and_stop_nobody(cloud):
    """A policy is answered as it was set (REF#setiampolicy), and every caller may do everything."""
    bindings = [{"role": "roles/cloudtasks.viewer", "members": ["user:nobody@example.com"]}]
    request = {"resource": cloud.queue, "policy": {"bindings": bindings}}
    stored = cloud.client.set_iam_policy(request=request)

    assert cloud.client.get_iam_policy(request={"resource": cloud.queue}) == stored
    assert [binding.role for binding in stored.bindings] == ["roles/cloudtasks.viewer"]
    assert cloud.create().name.startswith(cloud.queue)


def test_a_key_is_stored_and_encrypts_nothing(cloud):
    """The configuration of keys is answered as it was set (REF#updatecmekconfig)."""
    config = {"name": f"{PARENT}/cmekConfig", "kms_key": "projects/p/keys/k"}
    cloud.client.update_cmek_config(cmek_config=config)

    stored = cloud.client.get_cmek_config(name=config["name"])
    assert (stored.name, stored.kms_key) == (config["name"], config["kms_key"])
