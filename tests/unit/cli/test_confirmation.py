"""Commands that delete or roll back ask first, all in the same way."""

from __future__ import annotations

import difflib
import io
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.exceptions import AccessDeniedError, CheckpointNotFoundError
from airflow_provider_statecheck.hooks.transport import find_job
from scripts.docs.commands import commands
from tests.unit.cli.conftest import InterruptedTerminal, Run, Terminal, rows
from tests.unit.written_stage import JOB, WrittenStage

ADDS_ONLY = {"recover"}
"""It refuses a job that has rows."""


def saved(stage: WrittenStage, run: Run) -> str:
    (row,) = rows(run("savepoint", JOB, "-o", "json"))
    return str(row["pointer"])


DESTRUCTIVE: dict[str, Callable[[WrittenStage, Run], tuple[str, ...]]] = {
    "gc": lambda stage, run: ("gc", JOB),
    "prune": lambda stage, run: ("prune", JOB),
    "dispose": lambda stage, run: ("dispose", saved(stage, run)),
    "rewind": lambda stage, run: (
        "rewind",
        JOB,
        "--before",
        stage.maintenance.describe(job_id_of(JOB)).checkpoints[0].run_key,
    ),
    "restore": lambda stage, run: ("restore", JOB, "--from", saved(stage, run)),
    "uninstall": lambda stage, run: ("uninstall", "--storage"),
}


def state_of(stage: WrittenStage) -> tuple[object, object]:
    stored = [stage.maintenance.describe(job.job_id).checkpoints for job in stage.maintenance.jobs()]
    return stored, stage.files()


def test_each_command_with_a_dry_run_asks_unless_it_only_adds() -> None:
    flags = {name: {flag for arg in each.args for flag in arg.flags} for name, each in commands().items()}
    asks = {name for name in flags if "--yes" in flags[name]}
    assert {name for name in flags if "--dry-run" in flags[name]} - ADDS_ONLY == asks
    assert asks == DESTRUCTIVE.keys()


@pytest.mark.parametrize(
    ("kind", "typed", "status"),
    [(io.StringIO, "y\n", 2), (Terminal, "n\n", 0), (Terminal, "", 2), (InterruptedTerminal, "", 2)],
)
@pytest.mark.parametrize("command", ["gc", "dispose", "uninstall"])
def test_nothing_is_deleted_without_a_yes(
    stage: WrittenStage, run: Run, monkeypatch, command, kind, typed, status
) -> None:
    stage.run()
    arguments = DESTRUCTIVE[command](stage, run)
    before = state_of(stage)
    monkeypatch.setattr("sys.stdin", kind(typed))
    outcome = run(*arguments)
    assert state_of(stage) == before
    assert (outcome.status, outcome.out) == (status, "")


@pytest.mark.parametrize("command", ["gc", "dispose"])
def test_what_is_deleted_is_shown_before_the_question_and_a_yes_deletes(
    stage: WrittenStage, run: Run, monkeypatch, command
) -> None:
    stage.run()
    arguments = DESTRUCTIVE[command](stage, run)
    before = stage.files()
    monkeypatch.setattr("sys.stdin", Terminal("yes\n"))
    outcome = run(*arguments, "-o", "json")
    shown, question, _ = outcome.err.partition("? [y/N] ")
    assert (outcome.status, bool(question), "would be deleted" in shown) == (0, True, True)
    assert len(json.loads(outcome.out)) == 1
    assert stage.files() != before or command == "dispose"


@pytest.mark.parametrize("command", DESTRUCTIVE)
def test_a_script_is_told_what_to_add_and_a_dry_run_is_never_asked(
    stage: WrittenStage, run: Run, monkeypatch, command
) -> None:
    stage.run()
    arguments = DESTRUCTIVE[command](stage, run)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    outcome = run(*arguments)
    assert (outcome.status, "give --yes or --dry-run" in outcome.err) == (2, True)
    assert "[y/N]" not in run(*arguments, "--dry-run").err


class TestUnknownJob:
    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ("Balances", ["sales/balances", "test/balances"]),
            ("orderz", ["orders"]),
            ("nothing like it", []),
        ],
    )
    def test_is_answered_with_jobs_whose_names_contain_the_text_or_are_similar(self, stage, run, text, named) -> None:
        for job in ("sales/balances", "test/balances", "orders"):
            stage.attempt(job)
        outcome = run("stats", text)
        assert outcome.status == 2
        assert [job for job in ("sales/balances", "test/balances", "orders") if f"{job!r}" in outcome.err] == named
        assert ("did you mean" in outcome.err) is bool(named)

    def test_among_many_is_compared_with_those_that_begin_alike(self, monkeypatch) -> None:
        class Many:
            def describe(self, job_id: object) -> None:
                raise CheckpointNotFoundError("There is none.")

            def jobs(self) -> list[Any]:
                return [SimpleNamespace(name=f"nightly/{i}") for i in range(9_000)] + [SimpleNamespace(name="Orders")]

        counts: list[int] = []
        compare = difflib.get_close_matches

        def counted(text: str, names: list[str], **more: Any) -> list[str]:
            counts.append(len(names))
            return compare(text, names, **more)

        monkeypatch.setattr(difflib, "get_close_matches", counted)
        with pytest.raises(CheckpointNotFoundError, match="did you mean 'Orders'"):
            find_job(Many(), "orderz")  # type: ignore[arg-type]
        assert counts == [1_000]

    def test_of_a_caller_who_may_not_list_jobs_is_answered_without_names(self) -> None:
        class Hidden:
            def describe(self, job_id: object) -> None:
                raise CheckpointNotFoundError("There is none.")

            def jobs(self) -> None:
                raise AccessDeniedError("This token reads one job.")

        with pytest.raises(CheckpointNotFoundError) as error:
            find_job(Hidden(), "bal")  # type: ignore[arg-type]
        assert "did you mean" not in str(error.value)
        assert job_id_of("bal") not in str(error.value)
