"""The books of a run: nothing is claimed before it is proved, and no error is hidden."""

from __future__ import annotations

import datetime

import pytest

from handlers.shared.balance import Balance, total_of

pytestmark = pytest.mark.fast

AT = datetime.datetime(2030, 5, 1, 19, 30, 7)  # noqa: DTZ001  As Datastore has it.
DONE = {"is_moving": False, "asked": 1200, "made_count": 304, "found_count": 304}


def shown(balance: Balance) -> list[str]:
    """Return the equations of a balance as they are read."""
    return [
        f"{row.total.name} {row.total.count} {row.sign} "
        + " + ".join(f"{part.name} {part.count}" for part in row.parts)
        for row in balance.equations
    ]


def verdict(balance: Balance) -> tuple[str, str]:
    """Return the state and the words of a verdict, without the type."""
    assert balance.verdict is not None
    return balance.verdict.state, balance.verdict.text


def test_what_was_not_attempted_is_neither_made_nor_lost() -> None:
    """Both equations, with the times of the readings."""
    balance = Balance(**DONE).at(AT, AT)

    assert shown(balance) == [
        "asked 1200 = made 304 + refused 0 + not attempted 896",
        "accepted 304 = found 304 + in flight 0",
    ]
    assert balance.words == ["896 not attempted", "0 lost", "0 duplicated"]
    assert verdict(balance) == ("done", "Adds up")
    assert balance.equations[0].total.at == "19:30:07"
    assert balance.equations[1].parts[0].at == "19:30:07"


def test_nothing_is_proved_before_anything_ran() -> None:
    """No verdict, no equation, and it is not exact."""
    balance = Balance(is_moving=False, found_count=0)

    assert balance.verdict is None
    assert balance.equations == []
    assert not balance.is_exact


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"found_count": 303}, "1 lost"),
        ({"found_count": 305}, "1 duplicated"),
        ({"doubled": 2}, "2 duplicated"),
        ({"missing_count": 3, "is_moving": True}, "3 lost"),
        ({"doubled": 2, "is_moving": True}, "2 duplicated"),
        ({"made_count": 1201, "found_count": 1201}, "1 duplicated"),
    ],
)
def test_an_error_is_named_and_counted(change: dict[str, int], words: str) -> None:
    """Certain evidence also while work is open."""
    balance = Balance(**{**DONE, **change})  # type: ignore[arg-type]

    assert verdict(balance) == ("failed", words)
    assert words in balance.words
    assert not balance.is_exact


def test_a_row_that_differs_from_its_sources_is_an_error_however_the_totals_are() -> None:
    """Also while work is open."""
    for is_moving in (False, True):
        balance = Balance(**{**DONE, "drift": 2, "is_moving": is_moving})  # type: ignore[arg-type]

        assert verdict(balance) == ("failed", "drift 2")
        assert not balance.is_exact


@pytest.mark.parametrize(
    ("change", "state", "words"),
    [
        ({"is_moving": True, "found_count": 290}, ("running", "Open"), ["896 to come"]),
        (
            {"found_count": 303, "in_flight": 1},
            ("waiting", "1 in flight"),
            ["896 not attempted", "1 in flight"],
        ),
        (
            {"found_count": 310, "unconfirmed": 9},
            ("waiting", "6 in flight"),
            ["896 not attempted", "6 in flight"],
        ),
    ],
)
def test_open_work_is_called_open(
    change: dict[str, int], state: tuple[str, str], words: list[str]
) -> None:
    """Neither lost nor doubled, as long as a task may still settle it."""
    balance = Balance(**{**DONE, **change})  # type: ignore[arg-type]

    assert verdict(balance) == state
    assert balance.words == words


def test_what_is_begun_stands_on_the_side_of_what_is_accepted() -> None:
    """Up to as many as were begun; what goes beyond is found twice."""
    begun = Balance(**{**DONE, "found_count": 310, "unconfirmed": 9})  # type: ignore[arg-type]
    beyond = Balance(**{**DONE, "found_count": 314, "unconfirmed": 9})  # type: ignore[arg-type]

    assert shown(begun)[1] == "accepted and begun 310 = found 310 + in flight 0"
    assert verdict(beyond) == ("failed", "1 duplicated")


def test_what_earlier_runs_have_accepted_is_named() -> None:
    """A load of 800 clicks has made 32, and the total of the page has all that were ever made."""
    balance = Balance(is_moving=False, asked=800, made_count=32, earlier=1_262, found_count=1_294)

    assert shown(balance) == [
        "asked 800 = made 32 + refused 0 + not attempted 768",
        "accepted in all 1294 = found 1294 + in flight 0",
    ]


def test_errors_of_two_parts_do_not_cancel_out() -> None:
    """One has lost one, and another one has found one twice."""
    parts = [
        Balance(is_moving=False, earlier=10, found_count=9),
        Balance(is_moving=False, earlier=10, found_count=11),
    ]
    balance = total_of(parts, is_moving=False, asked=25, made_count=20)

    assert verdict(balance) == ("failed", "1 lost, 1 duplicated")
    assert shown(balance)[1] == "accepted 20 = found 20 + in flight 0"


def test_without_a_second_count_nothing_is_said_to_be_found_once() -> None:
    """Only that all was made, or how much was not."""
    assert verdict(Balance(is_moving=False, asked=5, made_count=4, refused=1)) == (
        "done",
        "Complete",
    )
    short = Balance(is_moving=False, asked=5, made_count=3, refused=1)
    assert verdict(short) == ("failed", "1 not attempted")
    assert short.words == ["1 not attempted"]


def test_equations_differ_openly() -> None:
    """While it moves by three dots, at the end by a crossed sign."""
    moving = Balance(**{**DONE, "is_moving": True, "found_count": 290})  # type: ignore[arg-type]
    lost = Balance(**{**DONE, "found_count": 290})  # type: ignore[arg-type]

    assert [balance.equations[1].sign for balance in (moving, lost)] == ["⋯", "≠"]
