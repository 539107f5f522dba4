"""The tutorial's tests find the planted double booking, and pass when it is mended."""

from __future__ import annotations

from pathlib import Path

from tests.infra import tutorial
from tests.infra.documents import text_of
from tests.infra.runs import sampling
from tests.rollforward.testing.sessions_of_users import report_in, run, shown, write_tutorial


@sampling.long
def test_the_double_booking_is_found_and_mended_as_the_page_shows(tmp_path: Path) -> None:
    """To the letter, seconds aside."""
    count = len(tutorial.steps())
    bad, good = shown()

    write_tutorial(tmp_path, count - 1)
    found = run(tmp_path, "--show-capture=no")
    write_tutorial(tmp_path, count)
    mended = run(tmp_path)

    assert report_in(found) == bad
    assert "1 failed, 2 passed" in found
    assert "rollforward/testing/" not in found  # A user reads no frame of the kit.
    assert report_in(mended) == good
    assert "3 passed" in mended


def test_the_clone_of_the_library_lies_out_of_the_shop() -> None:
    """In its folder pytest collected the library's tests, and ended before the shop's."""
    for page in ("docs/tutorial.md", "docs/howto/install.md"):
        commands = text_of(page)
        assert "git clone <url> ~/rollforward\n" in commands
        assert 'install "./rollforward' not in commands
