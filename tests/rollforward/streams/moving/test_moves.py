"""A pipeline moves with all that it has: counts over a move are those of one that has not moved."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rollforward.streams import Pipeline, PushSource
from rollforward.streams.graph import head
from rollforward.streams.inspection.dead_letters import replay
from rollforward.streams.model.codecs import JSON_VALUES
from rollforward.streams.model.errors import (
    BadLayoutError,
    MissingCodeError,
    TopologyError,
    UnreadableStateError,
)
from rollforward.streams.moving import exporting, file_format, importing
from rollforward.streams.moving.exporting import export_with
from rollforward.streams.moving.file_format import IncompleteExportError, read_header, seal_to
from rollforward.streams.moving.importing import import_page, import_with, pages_of
from rollforward.streams.moving.stopping import resume_steps, stop_steps
from rollforward.streams.publications import Publication
from rollforward.streams.scaling.resharding import split
from rollforward.streams.storage.remote_calls import Commit, Steps
from rollforward.streams.storage.schema import CHUNK, DEAD, HEAD, LARGE, SLAB, DeadRow
from rollforward.streams.topology import changes
from tests.rollforward.streams.moving import moves
from tests.rollforward.streams.packed import PACKED, Packed
from tests.rollforward.streams.planted import moving as planted
from tests.rollforward.streams.simulator.driver import Desk

pytestmark = pytest.mark.fast

attach = partial(changes.attach, version=None)
replace = partial(changes.replace, version=None)
detach = partial(changes.detach, discard=False)
discard = partial(changes.detach, discard=True)


def test_counts_over_a_move_are_those_of_one_that_has_not_moved(tmp_path: Path) -> None:
    """States, large ones, timers of both clocks, waiting records and their ids go along."""
    first = moves.first_half()
    path = moves.exported(first, tmp_path / "export")
    kinds = [json.loads(line) for line in moves.lines_of(path)]
    assert sum("stream" in row for row in kinds) == 40  # 20 records, for two computations.
    assert sum("text" in row and "stream" not in row for row in kinds) >= 16

    second = moves.imported(path)
    assert second.rows(LARGE)
    actual = moves.finish(second, *moves.records(90, 200))  # The first ones are repeated pushes.

    assert actual == moves.run_whole()


def test_values_with_a_codec_move_or_the_codec_that_is_missing_is_named(tmp_path: Path) -> None:
    """G22, G23: before anything is written; a pipeline that has gone back to JSON reads them."""
    path = moves.exported(moves.first_half(PACKED), tmp_path / "export")
    assert read_header(path).codecs == ["packed-1"]
    for codecs in ((), (Packed("packed-2"),)):
        lacking = Desk(moves.pipeline(*codecs))
        with pytest.raises(TopologyError, match=r"must have the codecs \['packed-1'\]"):
            import_with(moves.run_of(lacking), path)
        assert not lacking.rows(HEAD)

    for codecs in ((PACKED,), (JSON_VALUES, PACKED)):
        second = moves.imported(path, *codecs)
        actual = moves.finish(second, *moves.records(90, 200))
        assert actual == moves.run_whole()


def test_two_exports_of_one_stop_are_equal_and_may_alternate(tmp_path: Path) -> None:
    desk = moves.first_half()
    one, two = tmp_path / "one", tmp_path / "two"
    nested: list[Path] = []

    def run(steps: Any, *args: Any) -> Any:
        if not nested:
            nested.append(moves.exported(desk, two))
        moves.go_on(desk)  # Ticks, and tasks that are retried, go on.
        return moves.run_of(desk)(steps, *args)

    export_with(run, one)
    assert one.read_bytes() == two.read_bytes()
    desk.do(stop_steps(desk.environment))
    assert moves.exported(desk, two).read_bytes() == one.read_bytes()


def test_a_stopped_pipeline_goes_on_where_it_was() -> None:
    desk = moves.first_half()
    moves.go_on(desk)
    with pytest.raises(MissingCodeError):
        desk.push(*moves.records(100, 101))
    desk.do(resume_steps(desk.environment))
    desk.do(resume_steps(desk.environment))
    assert moves.finish(desk, *moves.records(100, 200)) == moves.run_whole()


def works_while_it_is_stopped(desk: Desk, call_number: int) -> int:
    """Stop while a worker is at a call; return how many rows it has written behind the stop."""
    desk.push(*moves.records(0, 80))
    worker = desk.worker("counting")
    try:
        call = next(worker)
        for _ in range(call_number):
            call = worker.send(desk.simulation.acts[type(call)](call))
    except StopIteration:
        return -1
    desk.do(stop_steps(desk.environment))
    kinds = (SLAB, CHUNK)
    rows = desk.simulation.store.rows
    before = {key: row.version for key, row in rows.items() if key.kind in kinds}
    with contextlib.suppress(MissingCodeError):
        desk.finish(worker, call)
    after = {key: row.version for key, row in rows.items() if key.kind in kinds}
    return len(dict(before.items() ^ after.items()))


def written_behind_stops() -> list[int]:
    """Return the rows written behind a stop, for each call of a worker at which it came."""
    written = list[int]()
    while (count := works_while_it_is_stopped(Desk(moves.pipeline()), len(written))) >= 0:
        written.append(count)
    return written


def test_a_worker_that_was_under_way_writes_nothing_behind_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = written_behind_stops()
    assert len(written) > 5
    assert not any(written)

    planted.rows_are_not_fenced(monkeypatch)
    assert any(written_behind_stops())


def pushes_while_it_is_stopped() -> int:
    """Return how many chunks a push has written that began before the stop."""
    from rollforward.streams.exchange.ingest import IngestRequest, inbound_record, ingest

    desk = Desk(moves.pipeline())
    desk.push(*moves.records(0, 10))
    desk.run()
    one = inbound_record(desk.environment, "in", {"k": "a"}, 11_000, "late")
    push = ingest(desk.environment, IngestRequest("in", "", [one]))
    call = desk.until(push, Commit)
    desk.do(stop_steps(desk.environment))
    with pytest.raises(MissingCodeError):
        desk.finish(push, call)
    return len(desk.rows(CHUNK))


def test_a_push_that_was_under_way_is_refused_behind_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert pushes_while_it_is_stopped() == 0
    planted.rows_are_not_fenced(monkeypatch)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        pushes_while_it_is_stopped()


def test_a_stop_may_be_killed_at_any_call_and_repeated(tmp_path: Path) -> None:
    whole = moves.run_whole()

    def stopped_after(number: int, *, after: bool) -> bool:
        desk = Desk(moves.pipeline())
        desk.push(*moves.records(0, 80))
        desk.run()
        desk.push(*moves.records(80, 100))
        try:
            moves.killed_at(desk, number, after=after)(stop_steps)
        except moves.Killed:
            moves.go_on(desk)
            desk.do(stop_steps(desk.environment))
        else:
            return False
        second = moves.imported(moves.exported(desk, tmp_path / "export"))
        assert moves.finish(second, *moves.records(100, 200)) == whole
        return True

    for after in (False, True):
        number = 0
        while stopped_after(number, after=after):
            number += 1
        assert number > 10


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return moves.exported(moves.first_half(), tmp_path_factory.mktemp("export") / "export")


@pytest.fixture(scope="module")
def export_without_ids(export: Path) -> Path:
    """Waiting records without ids, as another engine has them: nothing else tells repeats."""
    header, *rows = file_format.read_lines(export)
    path = export.with_name("without-ids")
    file_format.write_file(
        path, header, [row | ({"id": ""} if "id" in row else {}) for row in rows]
    )
    return path


def import_is_exact_wherever_it_dies(export: Path, *, after: bool) -> None:
    """Kill an import at each call, let ticks run, and repeat it."""
    whole, number = moves.run_whole(), 0
    while True:
        desk = Desk(moves.pipeline())
        try:
            import_with(moves.killed_at(desk, number, after=after), export)
        except moves.Killed:
            moves.go_on(desk)
            import_with(moves.run_of(desk), export)
            import_with(moves.run_of(desk), export)
        else:
            break
        assert moves.finish(desk, *moves.records(100, 200)) == whole, number
        number += 1
    assert number > 10


@pytest.mark.parametrize("first_rows", [400, 3])
@pytest.mark.parametrize("after", [False, True])
def test_an_import_may_be_killed_at_any_call_and_repeated(
    export_without_ids: Path, after: bool, first_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also among commits of first rows, which others complete."""
    monkeypatch.setattr(importing, "MAX_PAGE_ROWS", 12)
    monkeypatch.setattr(head, "MAX_FIRST_ROWS", first_rows)
    import_is_exact_wherever_it_dies(export_without_ids, after=after)


@pytest.mark.parametrize(
    "plant", [planted.chunks_have_names_of_chance, planted.watermarks_stay_where_ticks_moved_them]
)
def test_a_broken_import_is_noticed(
    plant: Callable[[pytest.MonkeyPatch], None],
    export_without_ids: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importing, "MAX_PAGE_ROWS", 12)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        import_is_exact_wherever_it_dies(export_without_ids, after=True)


def a_page_comes_again(export: Path, *, at: int) -> dict[str, Any]:
    """Deliver a page once more, whose steps stand at a call while the pipeline begins to run."""
    desk = Desk(moves.pipeline())
    header = read_header(export)
    page = next(page for page in pages_of(export) if page[0]["computation"] == "counting")
    import_with(moves.run_of(desk), export)
    stored = dict(desk.simulation.store.rows)
    assert stored[desk.environment.names.head].body.imported == header.id
    # As it was before the last commit of the import.
    desk = Desk(moves.pipeline())
    run = moves.run_of(desk)
    run(importing.begin, header)
    for number, each in enumerate(pages_of(export)):
        run(import_page, header, number, each)
    slow = import_page(desk.environment, header, 0, page)
    call = next(slow)
    for _ in range(at):
        call = slow.send(desk.simulation.acts[type(call)](call))
    run(importing.finish, header)
    desk.push(*moves.records(100, 150))
    desk.run()
    desk.finish(slow, call)
    desk.run()
    return moves.finish(desk, *moves.records(150, 200))


def test_a_page_that_comes_behind_the_end_of_the_import_writes_nothing(
    export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = moves.run_whole()
    for at in range(3):
        assert a_page_comes_again(export, at=at) == whole
    planted.pages_do_not_look_at_the_head(monkeypatch)
    assert any(a_page_comes_again(export, at=at) != whole for at in range(3))


def torn(lines: list[bytes]) -> dict[str, bytes]:
    """Return what may become of a file."""
    return {
        "nothing": b"",
        "its first half": b"".join(lines[: len(lines) // 2]),
        "all but its last line": b"".join(lines[:-1]),
        "half a line": b"".join(lines)[: -len(lines[-1]) - 5],
        "a line is missing": b"".join([*lines[:3], *lines[4:]]),
        "a line is there twice": b"".join([*lines[:3], *lines[2:]]),
        "two lines have changed places": b"".join([*lines[:2], lines[3], lines[2], *lines[4:]]),
        "no header": b"".join(lines[1:]),
        "it goes on": b"".join([*lines, lines[2]]),
        "a digit": b"".join(lines).replace(b'"timestamp_ms":80000', b'"timestamp_ms":80001', 1),
    }


def test_a_torn_export_is_refused_before_anything_is_written(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accepted() -> list[str]:
        names = list[str]()
        for name, text in torn([*moves.lines_of(export)]).items():
            path = tmp_path / "torn"
            path.write_bytes(text)
            desk = Desk(moves.pipeline())
            try:
                import_with(moves.run_of(desk), path)
            except IncompleteExportError:
                assert not desk.rows(HEAD)
            else:
                names.append(name)
        return names

    assert not accepted()
    planted.digests_are_not_compared(monkeypatch)
    assert "a digit" in accepted()


def test_an_export_has_one_page_in_memory(tmp_path: Path) -> None:
    """Of 60 states of 5 KB each, at most ten are read at once, and nothing is read twice."""
    desk = Desk(moves.pipeline())
    desk.push(*[moves.Came(f"id{n}", f"key{n}", 1_000 * n) for n in range(60)])
    desk.run()
    desk.do(stop_steps(desk.environment))
    pages = list[int]()

    def run(steps: Any, *args: Any) -> Any:
        result = moves.run_of(desk)(steps, *args)
        if steps is exporting.states_page and args[0].computation == "large":
            pages.append(len(result[0]))
        return result

    export_with(run, tmp_path / "export")
    assert sum(pages) == 60
    assert max(pages) == exporting.LARGE_AT_ONCE


def test_an_export_that_fails_leaves_no_file(tmp_path: Path) -> None:
    desk = moves.first_half()
    path = tmp_path / "export"
    with pytest.raises(moves.Killed):
        export_with(moves.killed_at(desk, 20, after=False), path)
    assert not [*tmp_path.iterdir()]


def test_what_cannot_be_moved_is_refused_by_name(export: Path, tmp_path: Path) -> None:
    desk = Desk(moves.pipeline())
    with pytest.raises(TopologyError, match="moving is not stopped"):
        moves.exported(desk, tmp_path / "export")
    desk.push(*moves.records(0, 10))
    with pytest.raises(TopologyError, match="moving has run before"):
        import_with(moves.run_of(desk), export)
    published = Desk(Pipeline("p", moves.Large, sinks=[Publication("ticks")]))
    published.push(*moves.records(0, 10))
    published.do(stop_steps(published.environment))
    with pytest.raises(TopologyError, match="the logs of ticks-log cannot be moved"):
        moves.exported(published, tmp_path / "export")
    other = Desk(Pipeline("moving", moves.Large, sources=[PushSource("in")]))
    with pytest.raises(TopologyError, match=r"only one of .* has \['counting', 'totals'\]"):
        import_with(moves.run_of(other), export)
    assert not other.rows(HEAD)


def test_records_in_an_inbox_that_was_split_have_to_be_forwarded_first(tmp_path: Path) -> None:
    desk = Desk(moves.pipeline())
    desk.push(*moves.records(0, 10))
    desk.do(split(desk.environment, "counting", 100))
    desk.do(stop_steps(desk.environment))
    with pytest.raises(TopologyError, match="records wait in an inbox of counting that was split"):
        moves.exported(desk, tmp_path / "export")
    desk.do(resume_steps(desk.environment))
    desk.run()
    desk.do(stop_steps(desk.environment))
    moves.exported(desk, tmp_path / "export")


def test_a_stopped_pipeline_is_neither_split_nor_imported_into(export: Path) -> None:
    desk = moves.first_half()
    with pytest.raises(BadLayoutError, match="counting is stopped"):
        desk.do(split(desk.environment, "counting", 100))
    with pytest.raises(TopologyError, match="moving has run before"):
        import_with(moves.run_of(desk), export)
    half = Desk(moves.pipeline())
    half.do(importing.begin(half.environment, read_header(export)))
    with pytest.raises(TopologyError, match="an import into it is not finished"):
        half.do(resume_steps(half.environment))


@pytest.mark.parametrize("change", [attach, replace, detach, discard])
def test_the_topology_of_a_stopped_pipeline_is_not_changed(
    change: Callable[..., Any], tmp_path: Path
) -> None:
    """G22: a resume brings back the topology of before, whose rows would be gone by then."""
    desk = moves.first_half()
    path = moves.exported(desk, tmp_path / "export")
    with pytest.raises(TopologyError, match="moving is stopped: resume it first"):
        desk.do(change(desk.environment, "large"))
    moves.go_on(desk)
    assert moves.exported(desk, tmp_path / "second").read_bytes() == path.read_bytes()
    desk.do(resume_steps(desk.environment))
    assert moves.finish(desk, *moves.records(100, 200)) == moves.run_whole()


def test_a_dead_timer_of_a_stopped_pipeline_is_not_replayed() -> None:
    """G22: it would be put behind what an export has read, and be lost by the move."""
    desk = moves.first_half()
    dead = DeadRow("large", "a", "no", 1_000, tag="tick", timestamp_ms=1_000, hold=1_000)

    def bury() -> Steps[None]:
        yield Commit(inserts=[(desk.environment.names.dead("large", "x"), dead)])

    desk.do(bury())
    chunks = desk.rows(CHUNK)
    with pytest.raises(MissingCodeError, match="moving is stopped"):
        desk.do(replay(desk.environment, "large:x"))
    assert (desk.rows(CHUNK), len(desk.rows(DEAD))) == (chunks, 1)
    desk.do(resume_steps(desk.environment))
    assert desk.do(replay(desk.environment, "large:x"))


def test_states_of_an_unknown_version_are_refused(export: Path, tmp_path: Path) -> None:
    header = read_header(export)
    later = file_format.Header(**{**vars(header), "versions": {"large": [1, 2]}})
    path = tmp_path / "later"
    file_format.write_file(path, later, [])
    with pytest.raises(UnreadableStateError, match=r"large does not declare .* versions \[2\]"):
        import_with(moves.run_of(Desk(moves.pipeline())), path)


def test_results_of_another_engine_need_an_id_and_positions(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="an id must have"):
        seal_to(tmp_path / "x", moves.pipeline(), [], 0, id_="a:b")


def test_a_pipeline_that_changes_is_not_stopped() -> None:
    desk = Desk(moves.pipeline())
    desk.push(*moves.records(0, 10))
    desk.run()
    desk.do(detach(desk.environment, "large"))
    with pytest.raises(TopologyError, match="its topology is being changed"):
        desk.do(stop_steps(desk.environment))
