"""The declaration of the commands, and arguments that none can use: one line and the status of wrong usage."""

from __future__ import annotations

import re

import pytest

from airflow_provider_statecheck.cli import (
    content_commands,
    maintenance_commands,
    savepoint_commands,
    state_commands,
)
from airflow_provider_statecheck.get_provider_info import get_provider_info
from scripts.docs.commands import commands
from tests.unit.cli.conftest import Run
from tests.unit.interpreter import modules_loaded_by
from tests.unit.written_stage import JOB


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


@pytest.mark.parametrize("command", ["checkpoints", "stats", "savepoint"])
@pytest.mark.usefixtures("finished")
def test_an_unknown_job_or_operator_is_wrong_usage_and_the_known_operators_are_named(run: Run, command: str) -> None:
    job, operator = run(command, "nothing"), run(command, JOB, "--uid", "custmers")
    assert (job.status, job.out, job.err.count("\n"), "nothing" in job.err) == (2, "", 1, True)
    assert (operator.status, operator.out, operator.err.count("\n")) == (2, "", 1)
    assert "give one of aggregate" in operator.err


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


MODULES = (
    content_commands,
    maintenance_commands,
    savepoint_commands,
    state_commands,
)


def test_the_declaration_loads_nothing_of_the_commands():
    """Every airflow command loads it."""
    loaded = modules_loaded_by(
        "from airflow_provider_statecheck.cli.definition import get_statecheck_commands as get; get()"
    )

    # Airflow itself reads the provider's declaration, now or later.
    declaration = {"airflow_provider_statecheck.get_provider_info"}
    ours = {name for name in loaded if name.startswith("airflow_provider_statecheck")}
    assert ours - declaration == {
        "airflow_provider_statecheck",
        "airflow_provider_statecheck.cli",
        "airflow_provider_statecheck.cli.definition",
    }


def test_each_command_leads_to_its_function_and_takes_an_output_format():
    """Airflow sends log lines to stderr only for commands that have one."""
    for name, each in commands().items():
        assert any(callable(getattr(module, re.sub("[ -]", "_", name), None)) for module in MODULES), name
        assert "--output" in {flag for arg in each.args for flag in arg.flags}


def test_the_provider_declares_the_commands():
    name = "airflow_provider_statecheck.cli.definition.get_statecheck_commands"
    assert get_provider_info()["cli"] == [name]
