"""The arguments of the commands, and the commands that print statistics."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from airflow_provider_statecheck.checkpoint.checkpoint_summary import (
    CheckpointSummary,
    LoopSummary,
    SourceSummary,
    StateSummary,
    StepSummary,
)
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import (
    DeclineCheckpoint,
    PendingCheckpoint,
    ReportProgress,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, Transport
from airflow_provider_statecheck.cli import (
    maintenance_commands,
    package_command,
    savepoint_commands,
    state_commands,
    uninstall_command,
)
from airflow_provider_statecheck.get_provider_info import get_provider_info
from airflow_provider_statecheck.spark.attempt import StageAttempt
from scripts.docs.commands import commands
from tests.messages import make_acknowledgement, make_owner
from tests.unit.cli.conftest import Run, rows
from tests.unit.interpreter import modules_loaded_by
from tests.unit.written_stage import JOB, WrittenStage


def trigger(stage: WrittenStage, attempt: StageAttempt) -> PendingCheckpoint:
    message = TriggerCheckpoint(attempt=attempt.grant.attempt, request_key=new_key())
    return stage.coordinator.trigger(message)


def fail(stage: WrittenStage, attempt: StageAttempt) -> None:
    message = DeclineCheckpoint(
        attempt=attempt.grant.attempt,
        checkpoint_id=trigger(stage, attempt).checkpoint_id,
        reason=CheckpointFailureReason.IO_EXCEPTION,
        message="disk full",
    )
    stage.coordinator.decline(message)


@pytest.fixture
def counted(stage: WrittenStage) -> WrittenStage:
    """Return a job with completed checkpoints, a failed one and one in progress."""
    attempt = stage.attempt()
    for size in (1024, 3072):
        pending = trigger(stage, attempt)
        stage.clock.advance(2)
        sizes = {"state_size_bytes": size, "full_size_bytes": 2 * size}
        stage.coordinator.acknowledge(make_acknowledgement(attempt.grant.attempt, pending, **sizes))
    fail(stage, attempt)
    trigger(stage, attempt)
    return stage


def test_stats_tell_counts_summaries_and_the_latest_of_each_operator(counted: WrittenStage, run: Run) -> None:
    [row] = rows(run("stats", JOB, "--output", "json"))
    pointers = (row.pop("latest_completed")[-6:], row.pop("latest_failed")[-6:])
    assert pointers == ("/chk-2", "/chk-3")
    assert row == {
        "operator": "aggregate",
        "total": 4,
        "in_progress": 1,
        "completed": 2,
        "failed": 1,
        "restored": 0,
        "savepoints": 0,
        "average_new_bytes": 2048,
        "max_new_bytes": 3072,
        "max_bytes": 6144,
        "average_seconds": 2.0,
        "p95_seconds": 2.0,
        "max_seconds": 2.0,
        "awaiting_discard": 2,
        "failure": "io_exception: disk full",
        "failures": ["io_exception: 1"],
        "computing": None,
        "computing_since": None,
        "rows_per_second": None,
        "checkpointing_percent": None,
        "transport": None,
        "last_answer": "2026-01-01T00:00:04+00:00",
    }


def test_stats_of_an_operator_without_checkpoints_are_empty(stage: WrittenStage, run: Run) -> None:
    stage.attempt()
    [row] = rows(run("stats", JOB, "--output", "json"))
    assert (row["total"], row["average_seconds"], row["latest_failed"], row["failures"]) == (0, None, None, [])


def test_stats_and_jobs_tell_what_a_running_attempt_is_computing_and_no_longer_after_its_end(
    stage: WrittenStage, run: Run
) -> None:
    attempt = stage.attempt(owner=make_owner(transport=Transport.MAILBOX))
    figures = CheckpointSummary(
        computing="days[2026-01-02]", computing_after=60.0, rows_per_second=1234.4, checkpoint_share=0.0314
    )
    stage.coordinator.report_progress(ReportProgress(attempt=attempt.grant.attempt, summary=figures))
    [row] = rows(run("stats", JOB, "--output", "json"))
    [job] = rows(run("jobs", "--output", "json"))
    begun = stage.coordinator.describe(attempt.grant.attempt.job_id).attempts[0].registered_at
    assert (row["computing"], row["rows_per_second"], row["checkpointing_percent"]) == ("days[2026-01-02]", 1234, 3.1)
    assert row["computing_since"] == (begun + timedelta(seconds=60)).isoformat()
    assert (row["transport"], row["last_answer"]) == ("mailbox", begun.isoformat())
    assert job["computing"] == [f"{attempt.grant.uid}: days[2026-01-02]"]
    attempt.finish(AttemptStatus.FAILED)
    [row] = rows(run("stats", JOB, "--output", "json"))
    [job] = rows(run("jobs", "--output", "json"))
    assert (row["computing"], row["computing_since"], job["computing"]) == (None, None, [])


def test_stats_can_be_those_of_one_operator(counted: WrittenStage, run: Run) -> None:
    counted.attempt(uid="customers")
    assert [row["operator"] for row in rows(run("stats", JOB, "-o", "json"))] == ["aggregate", "customers"]
    assert [row["operator"] for row in rows(run("stats", JOB, "--uid", "customers", "-o", "json"))] == ["customers"]


def test_the_history_tells_each_checkpoint_with_its_owner_and_whether_it_may_go(
    counted: WrittenStage, run: Run
) -> None:
    found = rows(run("stats", JOB, "--history", "--output", "json"))
    told = [(row["checkpoint"], row["status"], row["owner"], row["safe_to_delete"]) for row in found]
    assert told == [
        (4, "pending", "job", False),
        (3, "aborted", "job", False),
        (2, "completed", "job", False),
        (1, "subsumed", "job", True),
    ]
    assert (found[0]["seconds"], found[2]["seconds"]) == (None, 2.0)
    assert (found[1]["failure"], found[1]["pointer"][-6:]) == ("io_exception: disk full", "/chk-3")


def test_the_history_tells_the_parts_of_a_duration_where_they_were_measured(stage: WrittenStage, run: Run) -> None:
    attempt = stage.attempt()
    figures = CheckpointSummary(snapshot_seconds=8.5, write_seconds=0.25, seconds_saved=60.0)
    for summary in (None, figures):
        acknowledgement = make_acknowledgement(attempt.grant.attempt, trigger(stage, attempt), summary=summary)
        stage.coordinator.acknowledge(acknowledgement)
    names = ("snapshot_seconds", "write_seconds", "commit_seconds", "seconds_saved")
    found = rows(run("stats", JOB, "--history", "--output", "json"))
    assert [[row[name] for name in names] for row in found] == [[8.5, 0.25, None, 60.0], [None] * 4]


def test_one_checkpoint_is_told_with_its_steps_loops_sources_and_states(stage: WrittenStage, run: Run) -> None:
    attempt = stage.attempt()
    figures = CheckpointSummary(
        steps=(
            StepSummary(name="raw", outcome="restored", seconds=60.0, size_bytes=2048, rows=10),
            StepSummary(name="sessions", outcome="computed", seconds=2.5),
            StepSummary(name="scored", outcome="computed", parts=12, share=0.61),
        ),
        loops=(
            LoopSummary(name="days", finished=3, total=5, seconds=7.5),
            LoopSummary(name="ranks", finished=4, is_iteration=True),
        ),
        sources=(SourceSummary(uid="orders", finished_splits=1, total_splits=2),),
        states=(StateSummary(uid="totals", name="sum", kind="value", type="bigint", keys=7),),
        open_commits=("balances: 3 files",),
        left_out={"steps": 4},
    )
    stage.coordinator.acknowledge(make_acknowledgement(attempt.grant.attempt, trigger(stage, attempt), summary=figures))
    outcome = run("stats", JOB, "--checkpoint", "1", "-o", "json")
    assert [tuple(row.values()) for row in rows(outcome)] == [
        ("step", "raw", "restored", 60.0, 60.0, 10, 2048),
        ("step", "sessions", "computed", 2.5, 0.0, None, 0),
        ("step", "scored", "computed, 12 parts, 61 %", 0.0, 0.0, None, 0),
        ("loop", "days", "3 of 5 items finished", 7.5, None, None, None),
        ("loop", "ranks", "4 iterations finished", 0.0, None, None, None),
        ("source", "orders", "1 of 2 parts of the input read", None, None, None, None),
        ("value state", "totals/sum", "bigint", None, None, 7, None),
        ("open commit", "balances: 3 files", "", None, None, None, None),
    ]
    assert "4 steps are not shown" in outcome.err


def test_a_checkpoint_without_figures_says_so(counted: WrittenStage, run: Run) -> None:
    outcome = run("stats", JOB, "--checkpoint", "2", "-o", "json")
    assert (outcome.status, rows(outcome), outcome.err) == (0, [], "Checkpoint 2 has no figures.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--checkpoint", "9"), "Expected a checkpoint of job 'sales', found no 9"),
        (("--checkpoint", "2", "--history"), "Expected --checkpoint without --uid and --history"),
        (("--checkpoint", "2", "--uid", "aggregate"), "Expected --checkpoint without --uid and --history"),
    ],
)
def test_no_such_checkpoint_is_wrong_usage(
    counted: WrittenStage, run: Run, arguments: tuple[str, ...], message: str
) -> None:
    outcome = run("stats", JOB, *arguments)
    assert (outcome.status, message in outcome.err) == (2, True)


def test_a_late_acknowledgement_is_told_with_the_failure(stage: WrittenStage, run: Run) -> None:
    attempt = stage.attempt()
    checkpoint_id = trigger(stage, attempt)
    stage.clock.advance(700)
    stage.coordinator.acknowledge(make_acknowledgement(attempt.grant.attempt, checkpoint_id))
    [row] = rows(run("stats", JOB, "--output", "json"))
    assert row["failure"].startswith("checkpoint_expired: ")
    assert row["failure"].endswith(" (acknowledged after 700.0 s)")


def test_the_history_outlives_the_rows(counted: WrittenStage, run: Run) -> None:
    [operator] = counted.coordinator.describe(counted.coordinator.jobs()[0].job_id).operators
    with counted.store.transaction(operator.job_id) as tx:
        tx.remove_checkpoints((1, 3))
    found = rows(run("stats", JOB, "--history", "--output", "json"))
    assert [(row["checkpoint"], row["status"], row["owner"]) for row in found] == [
        (4, "pending", "job"),
        (3, "aborted", None),
        (2, "completed", "job"),
        (1, "completed", None),
    ]


def test_people_get_a_line_for_each_number_with_its_unit(counted: WrittenStage, run: Run) -> None:
    lines = [line.split() for line in run("stats", JOB, "--output", "plain").out.splitlines()]
    assert ["aggregate", "completed", "2"] in lines
    assert ["aggregate", "average_new_bytes", "2.0", "KiB"] in lines
    assert ["aggregate", "max_seconds", "2.0"] in lines
    assert ["aggregate", "failures", "io_exception:", "1"] in lines


def test_people_get_nothing_where_nothing_was_counted(stage: WrittenStage, run: Run) -> None:
    stage.attempt()
    lines = [line.split() for line in run("stats", JOB, "--output", "plain").out.splitlines()]
    assert ["aggregate", "max_bytes"] in lines


def test_an_attempt_that_ended_leaves_nothing_in_progress(counted: WrittenStage, run: Run) -> None:
    again = counted.attempt()
    again.finish(AttemptStatus.FAILED)
    [row] = rows(run("stats", JOB, "--output", "json"))
    assert (row["in_progress"], row["failed"]) == (0, 1)
    assert row["failures"] == ["io_exception: 1"]


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
    maintenance_commands,
    package_command,
    savepoint_commands,
    state_commands,
    uninstall_command,
)


def test_the_declaration_loads_nothing_of_the_commands():
    """Every airflow command loads it."""
    loaded = modules_loaded_by(
        "from airflow_provider_statecheck.cli.definition import get_statecheck_commands as get; get()"
    )

    # Airflow itself reads the provider's declaration, now or later, and the logs of the package are guarded from the
    # start.
    declaration = {"airflow_provider_statecheck.get_provider_info", "airflow_provider_statecheck.checkpoint"}
    declaration |= {"airflow_provider_statecheck.checkpoint.masking", "airflow_provider_statecheck.exceptions"}
    declaration |= {"airflow_provider_statecheck.settings"}  # whose texts both declarations show
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
