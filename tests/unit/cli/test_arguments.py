"""Arguments that no command can use: one line and the status of wrong usage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.cli.conftest import Outcome
from tests.unit.written_stage import JOB

Run = Callable[..., Outcome]


@pytest.mark.parametrize("number", [str(10**18 + 1), "9" * 400, "-1", "0", "1.5", "many"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("stats", JOB, "--checkpoint"),
        ("show", JOB, "orders", "--limit"),
        ("jobs", "--limit"),
        ("savepoint", JOB, "--timeout"),
        ("rescale", "/none/chk-7", "--max-parallelism"),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("finished")
def test_a_number_out_of_range_is_wrong_usage(run: Run, arguments: tuple[str, ...], number: str) -> None:
    outcome = run(*arguments, number)
    assert (outcome.status, outcome.out) == (2, "")
    assert f"expected a whole number from 1 to 1000000000000000000, found '{number}'" in outcome.err


@pytest.mark.usefixtures("finished")
def test_the_largest_number_is_accepted(run: Run) -> None:
    assert run("stats", JOB, "--checkpoint", str(10**18)).status == 2
    assert run("show", JOB, "orders", "--limit", str(10**18)).status == 0
    assert run("jobs", "--limit", str(10**18)).status == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("stats", "{}"),
        ("gc", JOB, "{}"),
        ("jobs", "--name", "{}"),
        ("rewind", "{}", "--before", "2026-01-01", "--yes"),
        ("rescale", "/none/{}/chk-7", "--max-parallelism", "4"),
        ("dispose", "/none/{}/savepoint-000000-000000000000"),
        ("recover", "/none", "--job", "{}"),
    ],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.usefixtures("finished")
def test_an_argument_that_is_not_utf_8_is_wrong_usage_in_one_line(run: Run, arguments: tuple[str, ...]) -> None:
    """Python gives each byte that is not UTF-8 to a program as a surrogate."""
    outcome = run(*(argument.format("\udcff") for argument in arguments))
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "Expected arguments in UTF-8" in outcome.err
