"""Profiles: what a file must have, and what is drawn from it."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from random import Random

import pytest

from pipelines.numbers.probes import PROBES
from rollforward.cloud_profile import BUNDLED, FROM_PROBES, ProfileError, load
from rollforward.cloud_profile.profile import CALLS, PERCENTILES, TABLES

TEXT = BUNDLED.read_text()
COMMIT_P95 = re.search(r"\[calls\.commit\]\n.*\n(p95_ms = .*)\n", TEXT)[1]  # type: ignore[index]


def written(folder: Path, text: str) -> Path:
    path = folder / "own.toml"
    path.write_text(text)
    return path


def test_each_number_that_comes_along_has_a_source_or_is_marked_as_a_guess() -> None:
    """And says so in words; a source names what was published, and when."""
    profile = load(BUNDLED)

    assert {f"calls.{call}.{each}" for call in CALLS for each in PERCENTILES} <= set(
        profile.numbers
    )
    assert {f"{name}.{each}" for name, fields in TABLES.items() for each in fields} <= set(
        profile.numbers
    )
    assert all(len(number.reason) > 10 for number in profile.numbers.values())
    assert f"{profile.dated}" in profile.describe()
    published = [number.reason for number in profile.numbers.values() if not number.is_guess]
    assert all(re.search(r"20\d\d|app\.yaml", why) for why in published)


@pytest.mark.parametrize("call", CALLS)
def test_what_is_drawn_has_the_percentiles_of_the_file(call: str) -> None:
    """Of 20,000 draws; a pause is one of the first calls in a thousand, above the 99th."""
    profile = load(BUNDLED)
    random = Random(7)
    drawn = statistics.quantiles([profile.draw(call, random) for _ in range(20_000)], n=100)

    latency = profile.calls[call]
    expected = (latency.p50_ms, latency.p95_ms, latency.p99_ms)
    for share, ms in zip((50, 95, 99), expected, strict=True):
        assert drawn[share - 1] * 1000 == pytest.approx(ms, rel=0.25)


def test_a_call_of_many_entities_takes_longer() -> None:
    """By the same for each of them."""
    profile = load(BUNDLED)
    one, many = (profile.draw("commit", Random(1), items) for items in (1, 101))

    assert many - one == pytest.approx(profile["calls.commit.per_item_ms"] / 10)


def test_now_and_then_a_call_takes_seconds(tmp_path: Path) -> None:
    """As often as the file says."""
    share = re.search(r"share = .*", TEXT)[0]  # type: ignore[index]
    often = TEXT.replace(share, 'share = { value = 0.5, guess = "to be seen" }')
    profile = load(written(tmp_path, often))
    random = Random(3)
    long = sum(profile.draw("memcached", random) > 0.2 for _ in range(1000))

    assert 400 < long < 600


def test_a_seed_draws_the_same_again(tmp_path: Path) -> None:
    """In each process that reads the file."""
    profile = load(written(tmp_path, f"seed = 11\n{TEXT}"))
    ours, theirs = profile.random(), profile.random()

    assert [profile.draw("query", ours) for _ in range(9)] == [
        profile.draw("query", theirs) for _ in range(9)
    ]


def test_traffic_grows_by_half_every_five_minutes() -> None:
    """From 500 a second: the documents name 740,000 after an hour and a half."""
    profile = load(BUNDLED)

    assert profile.allowed_per_s("ramp", 0) == 500
    assert profile.allowed_per_s("ramp", 300) == 750
    assert profile.allowed_per_s("queues", 90 * 60) == pytest.approx(740_000, rel=0.01)


def test_probes_of_numbers_fill_calls_of_the_file() -> None:
    """Each is a probe, and a call."""
    assert set(FROM_PROBES.values()) <= {probe.name for probe in PROBES}
    assert set(FROM_PROBES) <= set(CALLS)


WRONG = {
    "no TOML": (TEXT + "\n[", "is no profile"),
    "a call is missing": (
        TEXT.replace("[calls.lookup]", "[calls.lookups]"),
        "calls must have lookup",
    ),
    "a number is missing": (TEXT.replace(COMMIT_P95, ""), "calls.commit must have p95_ms"),
    "a table is unknown": (TEXT + "\n[more]", "the file must have no more"),
    "no reason": (
        TEXT.replace(COMMIT_P95, "p95_ms = { value = 75 }"),
        "calls.commit.p95_ms must have a value, and either a source or a guess",
    ),
    "an unknown source": (
        TEXT.replace(COMMIT_P95, 'p95_ms = { value = 75, source = "hearsay" }'),
        "its source must be one of [sources], got 'hearsay'",
    ),
    "an empty guess": (
        TEXT.replace(COMMIT_P95, 'p95_ms = { value = 75, guess = " " }'),
        "its guess must be a reason",
    ),
    "a text": (
        TEXT.replace(COMMIT_P95, 'p95_ms = { value = "75", guess = "so" }'),
        "calls.commit.p95_ms must be a number above 0, got '75'",
    ),
    "nothing": (
        TEXT.replace(COMMIT_P95, 'p95_ms = { value = 0, guess = "so" }'),
        "calls.commit.p95_ms must be a number above 0, got 0",
    ),
    "out of order": (
        TEXT.replace(COMMIT_P95, 'p95_ms = { value = 7, guess = "so" }'),
        "calls.commit must have p50_ms <= p95_ms <= p99_ms, got 31.5, 7.0, 104.5",
    ),
    "no date": (TEXT.replace("dated = 2026-11-24", 'dated = "today"'), "dated must be a date"),
    "a seed that is none": (f"seed = 1.5\n{TEXT}", "seed must be a whole number, got 1.5"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_file_that_is_no_profile_says_what_is_wrong(what: str, tmp_path: Path) -> None:
    """With its path, and what stands there instead."""
    text, said = WRONG[what]
    assert text != TEXT
    path = written(tmp_path, text)

    with pytest.raises(ProfileError, match=re.escape(said)) as error:
        load(path)

    assert str(path) in str(error.value)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    """And where it was looked for."""
    with pytest.raises(ProfileError, match=r"none\.toml cannot be read: No such file"):
        load(tmp_path / "none.toml")
