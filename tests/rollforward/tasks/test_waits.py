"""Names, headers and lengths of planned waits."""

from __future__ import annotations

import pytest

from rollforward.tasks import waits
from rollforward.tasks.errors import Retry

pytestmark = pytest.mark.fast


def test_headers_that_are_no_names_are_no_names() -> None:
    """A task's id has letters, digits, hyphens and underscores."""
    headers: list[dict[str, str]] = [{}, {"X-Rollforward-Task": "a/b", "X-Rollforward-Waits": "1"}]
    headers += [{"X-Rollforward-Task": "a", "X-Rollforward-Waits": n} for n in ("", "-1", "x")]

    assert {waits.continued(sent) for sent in headers} == {("", 0)}
    assert waits.continued({"X-Rollforward-Task": "a", "X-Rollforward-Waits": "7"}) == ("a", 7)


def test_a_header_that_tells_nothing_of_a_name_is_none() -> None:
    """It becomes a part of a task's name."""
    texts = ("0123abcd", "", "0123ABCD", "0123abc", "0123abcd/")

    born = [waits.born_of({"X-Rollforward-Born": text}) for text in texts]
    assert (born, waits.born_of({})) == (["0123abcd", "", "", "", ""], "")


def test_the_longest_name_has_room_for_a_wait() -> None:
    """500 characters are the most that Cloud Tasks takes."""
    assert waits._next_name("n" * 490, 3) == "n" * 490 + "-w3"
    assert len(waits._next_name("n" * 500, 3)) <= 500


@pytest.mark.parametrize("after_s", [-1, float("nan"), float("inf"), 31 * 86_400])
def test_a_wait_has_a_length_that_a_queue_can_keep(after_s: float) -> None:
    """A mistake is told of where it is made."""
    with pytest.raises(ValueError, match="after_s must be 0 to"):
        Retry("later", after_s=after_s)
    assert Retry("soon").after_s is None
