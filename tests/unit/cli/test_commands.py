from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from typing import Any

import pytest
from airflow.utils import yaml
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.messages import DeclineCheckpoint, TriggerCheckpoint
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.cli import maintenance_commands, savepoint_commands, state_commands
from airflow_provider_statecheck.exceptions import (
    CommitStateUnknownError,
    CoordinatorUnavailableError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StorageError,
)
from airflow_provider_statecheck.hooks import connection
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.patience import HostPatience
from tests.unit.cli.conftest import InterruptedTerminal, Terminal, parse, rows
from tests.unit.written_stage import JOB, WrittenStage, local_path

MONTH = 31 * 24 * 3600


def damage(stage: Any, job: str = JOB) -> None:
    row = stage.coordinator.describe(job_id_of(job)).checkpoints[-1]
    local_path(row.metadata_uri).write_bytes(b"damaged")


def lose_storage(monkeypatch: pytest.MonkeyPatch, of: str = "") -> None:
    def away(base: str) -> CheckpointStorage:
        if of in base:
            raise StorageError("The storage is away.")
        return CheckpointStorage.open(base)

    monkeypatch.setattr(maintenance_commands, "guarded_storage_opener", lambda conn_id: away)


def test_a_reader_that_has_seen_enough_is_no_error(stage, run, monkeypatch):
    stage.run()
    reading, writing = os.pipe()
    os.close(reading)
    with monkeypatch.context() as patch, os.fdopen(writing, "w", encoding="utf-8") as unread:
        patch.setattr(sys, "stdout", unread)
        args = parse("checkpoints", JOB, "-o", "json")
        with pytest.raises(SystemExit) as end:
            args.func(args)
        assert end.value.code == 141
        unread.write("the rest")


class TestJobs:
    def test_lists_each_job_with_its_newest_checkpoint_and_last_failure(self, stage, run):
        stage.run("with a checkpoint")
        stage.clock.advance(60)
        stage.attempt("test/without one")
        found = rows(run("jobs", "-o", "json"))
        assert [row["name"] for row in found] == ["with a checkpoint", "test/without one"]
        assert found[1] == {
            "name": "test/without one",
            "job_id": job_id_of("test/without one"),
            "status": "running",
            "computing": [],
            "operators": 1,
            "dags": [],
            "checkpoint": None,
            "completed_at": None,
            "bytes": None,
            "earlier_bytes": None,
            "failed_at": None,
            "failure": None,
        }
        assert (found[0]["checkpoint"], found[0]["status"]) == (3, "failed")
        assert found[0]["completed_at"] == found[0]["failed_at"] == "2026-01-01T00:00:00+00:00"
        assert found[0]["bytes"] > 10_000
        assert found[0]["earlier_bytes"] is not None

    def test_lists_those_that_match_and_not_more_than_asked_for(self, stage, run):
        for job in ("sales/1", "sales/2", "sales/3", "other"):
            stage.attempt(job)
        outcome = run("jobs", "--name", "Sales/", "--sort", "name", "--limit", "2", "-o", "json")
        assert [row["name"] for row in rows(outcome)] == ["sales/1", "sales/2"]
        assert outcome.err == "1 more job; raise --limit to list them.\n"
        reverse = run("jobs", "--status", "running", "--sort", "name", "--reverse", "-o", "json")
        assert [row["name"] for row in rows(reverse)] == ["sales/3", "sales/2", "sales/1", "other"]
        for arguments in (("--status", "failed"), ("--dag-id", "nightly")):
            outcome = run("jobs", *arguments, "-o", "json")
            assert (rows(outcome), outcome.err) == ([], "")

    def test_lists_more_jobs_than_fit_on_a_page(self, stage, run, monkeypatch):
        monkeypatch.setattr(maintenance_commands, "LARGEST_JOB_PAGE", 2)
        for number in range(5):
            stage.attempt(f"job {number}")
        outcome = run("jobs", "--limit", "3", "-o", "json")
        assert [row["name"] for row in rows(outcome)] == ["job 0", "job 1", "job 2"]
        assert outcome.err == "2 more jobs; raise --limit to list them.\n"
        assert len(rows(run("jobs", "-o", "json"))) == 5

    def test_begins_with_the_newest_and_the_largest(self, stage, run):
        for job in ("older", "newer"):
            stage.run(job)
            stage.clock.advance(60)
        for sort in ("completed_at", "failed_at"):
            assert [row["name"] for row in rows(run("jobs", "--sort", sort, "-o", "json"))] == ["newer", "older"]
            reverse = rows(run("jobs", "--sort", sort, "--reverse", "-o", "json"))
            assert [row["name"] for row in reverse] == ["older", "newer"]

    def test_prints_names_as_they_are(self, stage, run):
        """Brackets and colons are markup to the printer of tables."""
        stage.attempt("a [bold]:x: job", uid="features[eu]")
        for output in ("table", "plain"):
            assert "a [bold]:x: job" in run("jobs", "-o", output).out
            assert "features[eu]" in run("stats", "a [bold]:x: job", "-o", output).out

    def test_prints_yaml(self, stage, run):
        stage.run()
        assert yaml.safe_load(run("jobs", "-o", "yaml").out) == rows(run("jobs", "-o", "json"))

    def test_says_that_there_are_none(self, stage, run):
        assert run("jobs").out.strip() == "No data found"
        assert rows(run("jobs", "-o", "json")) == []


class TestCheckpoints:
    def test_lists_the_newest_checkpoints_and_says_how_to_see_earlier_ones(self, stage, run):
        stage.run(checkpoints=5)
        newest = run("checkpoints", JOB, "--limit", "2", "-o", "json")
        assert [row["checkpoint"] for row in rows(newest)] == [4, 5]
        assert "--before 4" in newest.err
        earlier = run("checkpoints", JOB, "--limit", "4", "--before", "4", "-o", "json")
        assert [row["checkpoint"] for row in rows(earlier)] == [1, 2, 3]
        assert "--before" not in earlier.err

    def test_lists_checkpoints_with_what_became_of_them(self, stage, run):
        stage.run()
        attempt = stage.attempt().grant.attempt
        pending = stage.coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key="0" * 32))
        reason = CheckpointFailureReason.IO_EXCEPTION
        decline = DeclineCheckpoint(
            attempt=attempt, checkpoint_id=pending.checkpoint_id, reason=reason, message="disk full"
        )
        stage.coordinator.decline(decline)
        found = rows(run("checkpoints", JOB, "-o", "json"))
        assert [row["status"] for row in found] == ["subsumed", "subsumed", "completed", "aborted"]
        assert found[2]["pointer"] == f"{stage.storage.base_uri}/{job_id_of(JOB)}/chk-3"
        assert found[2]["seconds"] == 0.0
        assert found[3]["failure"] == f"{reason.value}: disk full"

    def test_lists_those_of_an_operator_and_a_status(self, stage, run):
        stage.run()
        stage.run(uid="other", checkpoints=1)
        found = rows(run("checkpoints", JOB, "--uid", "aggregate", "--status", "completed", "-o", "json"))
        assert [(row["checkpoint"], row["operator"]) for row in found] == [(3, "aggregate")]

    def test_takes_the_id_of_a_job_for_its_name(self, stage, run):
        stage.run()
        assert run("checkpoints", job_id_of(JOB), "-o", "json").out == run("checkpoints", JOB, "-o", "json").out

    def test_refuses_the_id_of_a_job_that_is_the_name_of_another(self, stage, run):
        stage.run()
        stage.run(job_id_of(JOB), checkpoints=1)
        outcome = run("checkpoints", job_id_of(JOB), "-o", "json")
        assert (outcome.status, outcome.out) == (2, "")
        assert f"Give {JOB!r} for the first, or {job_id_of(job_id_of(JOB))} for the other." in outcome.err
        assert len(rows(run("checkpoints", JOB, "-o", "json"))) == 3
        assert len(rows(run("checkpoints", job_id_of(job_id_of(JOB)), "-o", "json"))) == 1

    @pytest.mark.parametrize("command", [("state", "show"), ("dispose", "--yes"), ("restore", JOB, "--yes", "--from")])
    def test_ends_with_2_for_a_text_that_is_no_pointer(self, stage, run, command):
        stage.run()
        outcome = run(*command, "savepoint-1")
        assert (outcome.status, outcome.out, len(outcome.err.splitlines())) == (2, "", 1)


class TestVerify:
    def test_ends_with_0_where_all_can_be_restored(self, stage, run):
        stage.run()
        for arguments in ((JOB,), (JOB, "--deep"), (JOB, "--checkpoint", "3")):
            outcome = run("verify", *arguments, "-o", "json")
            assert (outcome.status, [row["restorable"] for row in rows(outcome)]) == (0, [True])

    def test_ends_with_1_and_says_why_where_one_cannot(self, stage, run):
        stage.run()
        damage(stage)
        outcome = run("verify", JOB, "-o", "json")
        assert outcome.status == 1
        assert "found 7 bytes" in rows(outcome)[0]["problems"][0]

    def test_takes_a_pointer(self, stage, run):
        stage.run()
        pointer = stage.coordinator.describe(job_id_of(JOB)).checkpoints[-1].location
        assert run("verify", pointer).status == 0
        damage(stage)
        assert run("verify", pointer).status == 1

    def test_takes_a_name_with_a_part_like_that_of_a_uri(self, stage, run):
        stage.run("nightly/manual://1")
        for command in ("verify", "show"):
            assert run(command, "nightly/manual://1").status == 0

    @pytest.mark.parametrize("job", [JOB, "file:///nowhere/chk-1", "nothing"])
    def test_ends_with_2_where_there_is_nothing_to_verify(self, stage, run, job):
        stage.run()
        options = ("--checkpoint", "1") if job == JOB else ()
        outcome = run("verify", job, *options)
        assert (outcome.status, len(outcome.err.splitlines())) == (2, 1)

    def test_ends_with_3_where_the_storage_does_not_answer(self, stage, run, monkeypatch):
        stage.run()
        lose_storage(monkeypatch)
        outcome = run("verify", JOB)
        assert (outcome.status, outcome.err) == (3, "error: The storage is away.\n")

    def test_a_checkpoint_that_was_subsumed_meanwhile_is_no_finding(self, stage, run, monkeypatch):
        attempt = stage.attempt()
        first = stage.take(attempt)

        def opener(base: str) -> CheckpointStorage:
            stage.take(attempt)
            local_path(str(first.metadata_uri)).unlink()
            return CheckpointStorage.open(base)

        monkeypatch.setattr(maintenance_commands, "guarded_storage_opener", lambda conn_id: opener)
        outcome = run("verify", JOB, "-o", "json")
        assert (outcome.status, rows(outcome)) == (0, [])


class TestGc:
    def test_deletes_and_reports_bytes_and_directories(self, stage, run):
        stage.run()
        stage.run("other")
        before = sum(stage.files().values())
        outcome = run("gc", "--yes", "--all", "-o", "json")
        found = rows(outcome)
        assert (outcome.status, {row["job"] for row in found}) == (0, {JOB, "other"})
        assert sum(row["bytes"] for row in found) == before - sum(stage.files().values())
        assert "2 jobs checked, 8 directories with" in outcome.err

    def test_touches_the_named_jobs_alone(self, stage, run):
        stage.run()
        stage.run("other")
        assert run("gc", "--yes", JOB).status == 0
        assert (stage.statuses()[1], stage.statuses("other")[1]) == ("subsumed", "SUBSUMED")

    def test_a_dry_run_changes_nothing(self, stage, run):
        stage.run()
        before = stage.files()
        outcome = run("gc", "--all", "--dry-run", "-o", "json")
        assert (stage.files(), stage.statuses()[1]) == (before, "SUBSUMED")
        assert len(rows(outcome)[0]["directories"]) == 4
        assert "would be deleted" in outcome.err

    def test_says_what_it_keeps(self, stage, run):
        stage.run()
        stage.attempt()
        (row,) = rows(run("gc", "--yes", JOB, "-o", "json"))
        assert row["retained"] == ["operator 'aggregate': attempt 2 (dag.task) has not ended; it pins checkpoint 3"]

    def test_ends_with_3_and_goes_on_where_the_storage_of_one_job_does_not_answer(
        self, stage, run, monkeypatch, tmp_path
    ):
        stage.run()
        stage.clock.advance(1)
        away = type(stage)(CheckpointStorage.open(str(tmp_path / "away")), stage.clock, stage.store)
        away.run("away")
        lose_storage(monkeypatch, "/away")
        outcome = run("gc", "--yes", "--all", "-o", "json")
        assert outcome.status == 3
        assert [bool(row["problems"]) for row in rows(outcome)] == [True, False]
        assert stage.statuses()[1] == "subsumed"

    def test_ends_with_1_where_something_could_not_be_deleted(self, stage, run, monkeypatch):
        stage.run()
        monkeypatch.setattr("airflow_provider_statecheck.storage.discarding.EffectDiscards.discard", lambda *_: ())
        assert run("gc", "--yes", "--all").status == 1

    @pytest.mark.parametrize("arguments", [(), (JOB, "--all"), ("nothing",)], ids=["none", "both", "unknown"])
    def test_ends_with_2_where_it_is_not_clear_which_jobs(self, stage, run, arguments):
        stage.run()
        outcome = run("gc", "--yes", *arguments)
        assert (outcome.status, len(outcome.err.splitlines())) == (2, 1)
        assert stage.statuses()[1] == "SUBSUMED"


class TestPrune:
    def test_removes_test_jobs_and_tells_which(self, stage, run):
        stage.run("test/a")
        stage.run("b")
        outcome = run("prune", "--test-jobs", "--yes", "-o", "json")
        assert outcome.status == 0
        assert [(row["job"], row["removed"]) for row in rows(outcome)] == [("test/a", True)]
        assert [job.name for job in stage.maintenance.jobs()] == ["b"]
        assert outcome.err == "1 of 2 jobs and 0 ended tokens removed.\n"

    def test_removes_a_named_job_and_nothing_of_others(self, stage, run):
        stage.run("test/a")
        stage.run("b")
        stage.clock.advance(MONTH)
        assert run("prune", "b", "--yes").status == 0
        assert [job.name for job in stage.maintenance.jobs()] == ["test/a"]

    def test_forgets_old_rows_of_a_job_that_stays(self, stage, run):
        stage.run()
        stage.run()
        stage.clock.advance(MONTH)
        (row,) = rows(run("prune", "--yes", "-o", "json"))
        assert (row["removed"], row["attempts"]) == (False, 1)

    def test_a_dry_run_changes_nothing(self, stage, run):
        stage.run("test/a")
        outcome = run("prune", "--test-jobs", "--dry-run", "-o", "json")
        assert rows(outcome)[0]["removed"]
        assert "would be removed" in outcome.err
        assert stage.statuses("test/a")[3] == "completed"

    def test_without_yes_it_asks_and_no_is_no(self, stage, run, monkeypatch):
        stage.run("test/a")
        for answer, left in (("\n", 1), ("n\n", 1), ("y\n", 0)):
            monkeypatch.setattr("sys.stdin", Terminal(answer))
            outcome = run("prune", "--test-jobs")
            assert (outcome.status, len(stage.maintenance.jobs())) == (0, left), answer
            assert "Remove these database rows and files? [y/N]" in outcome.err

    @pytest.mark.parametrize(("answer", "shown"), [("y\n", 1), ("n\n", 0)])
    def test_only_what_was_changed_is_on_stdout(self, stage, run, monkeypatch, answer, shown):
        stage.run("test/a")
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        outcome = run("prune", "--test-jobs", "-o", "json")
        assert len(json.loads(outcome.out or "[]")) == shown
        assert '"job": "test/a"' in outcome.err

    def test_ends_with_2_where_the_question_is_not_answered(self, stage, run, monkeypatch):
        stage.run("test/a")
        for stdin in (Terminal(""), InterruptedTerminal()):
            monkeypatch.setattr("sys.stdin", stdin)
            outcome = run("prune", "--test-jobs")
            assert (outcome.status, len(stage.maintenance.jobs())) == (2, 1)
            assert "nothing was changed" in outcome.err.splitlines()[-1]

    def test_ends_with_2_where_nobody_can_be_asked(self, stage, run, monkeypatch):
        stage.run("test/a")
        monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
        assert run("prune", "--test-jobs").status == 2
        assert stage.statuses("test/a")[3] == "completed"

    def test_ends_with_2_for_names_together_with_conditions(self, stage, run):
        stage.run()
        for condition in (("--test-jobs",), ("--older-than", "30d")):
            assert run("prune", JOB, *condition, "--yes").status == 2
        assert stage.statuses()[3] == "completed"

    @pytest.mark.parametrize("age", ["30", "d", "-1d", "23h", "0d", "1y", "1.5d"])
    def test_ends_with_2_for_an_age_that_is_none_or_less_than_a_day(self, stage, run, age):
        outcome = run("prune", f"--older-than={age}", "--yes")
        assert outcome.status == 2
        assert "30d or 48h" in outcome.err

    def test_ends_with_3_where_the_storage_does_not_answer(self, stage, run, monkeypatch):
        stage.run("test/a")
        lose_storage(monkeypatch)
        assert run("prune", "--test-jobs", "--yes").status == 3
        assert len(stage.maintenance.jobs()) == 1


ALL = [("jobs",), ("checkpoints", JOB), ("verify", JOB), ("gc", "--all", "--yes"), ("prune", "--yes")]
DATABASE_ERRORS = [EnvironmentNotReadyError, CoordinatorUnavailableError, CommitStateUnknownError]


@pytest.mark.parametrize("kind", DATABASE_ERRORS, ids=lambda kind: kind.code)
@pytest.mark.parametrize("arguments", ALL, ids=lambda arguments: arguments[0])
def test_every_command_ends_with_3_and_one_line_where_the_database_fails(stage, run, monkeypatch, arguments, kind):
    def fail() -> None:
        raise kind("The database\nis away.")

    monkeypatch.setattr(maintenance_commands, "maintenance_gateway", fail)
    monkeypatch.setattr(maintenance_commands, "job_rows", fail)
    outcome = run(*arguments)
    assert (outcome.status, outcome.out, outcome.err) == (3, "", "error: The database is away.\n")


DAY = 24 * 3600


def lost(stage: WrittenStage) -> WrittenStage:
    """Write a job whose rows are in no database."""
    other = WrittenStage(CheckpointStorage.open(stage.storage.base_uri))
    other.run()
    return other


def test_jobs_are_recovered_and_can_be_listed(stage, run):
    lost(stage)
    outcome = run("recover", stage.storage.base_uri, "-o", "json")
    (row,) = rows(outcome)
    assert (outcome.status, row["job"], row["recovered"], len(row["checkpoints"])) == (0, JOB, True, 3)
    assert run("verify", JOB).status == 0
    assert stage.attempt().restore() is not None


def test_recover_opens_the_given_directory_and_configured_locations_alone(stage, run, monkeypatch, tmp_path):
    lost(stage)
    monkeypatch.setenv("AIRFLOW__STATECHECK__CHECKPOINT_DIR", f"{tmp_path}/another")
    opened = []

    def guarded(*given: Any) -> Any:
        opened.append(connection.guarded_storage_opener(*given))
        return opened[-1]

    monkeypatch.setattr(maintenance_commands, "guarded_storage_opener", guarded)
    outcome = run("recover", stage.storage.base_uri, "--dry-run", "--savepoints", f"file://{tmp_path}/saved")
    assert f"Expected savepoints in file://{tmp_path}/saved" in outcome.err
    [opener] = opened
    for known in ("base", "saved", "another"):
        opener(f"file://{tmp_path}/{known}")
    with pytest.raises(InvalidConfigurationError):
        opener("file:///etc")


class Silent(MemoryFileSystem):  # type: ignore[misc]
    """A storage that never answers."""

    protocol = "silent"
    cachable = False

    def info(self, path: str, **_: Any) -> Any:
        threading.Event().wait(30)

    ls = find = cat_file = rm_file = pipe_file = rm = info


NOWHERE = "silent://host/saved/savepoint-000000-0123456789ab"


@pytest.mark.parametrize(
    "command",
    [
        ("verify", NOWHERE),
        ("verify", NOWHERE, "--deep"),
        ("restore", JOB, "--from", NOWHERE),
        ("dispose", NOWHERE, "--yes"),
        ("rescale", NOWHERE, "--max-parallelism", "64"),
        ("recover", "silent://host/base"),
        ("show", NOWHERE),
        ("state", "show", NOWHERE),
    ],
    ids=" ".join,
)
def test_a_storage_that_the_user_names_and_that_never_answers_ends_the_command_at_the_deadline(
    stage, run, monkeypatch, command
):
    stage.run()
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "silent", Silent)
    monkeypatch.setattr(connection, "PATIENCE", HostPatience(longest_seconds=0.1))
    for module in (maintenance_commands, savepoint_commands, state_commands):
        for name in ("guarded_storage_opener", "pointer_storage_opener"):
            monkeypatch.setattr(module, name, getattr(connection, name), raising=False)
    began = time.monotonic()
    outcome = run(*command)
    assert time.monotonic() - began < 10
    assert (outcome.status != 0, "answer" in f"{outcome.out}{outcome.err}") == (True, True)


def test_a_dry_run_of_recover_makes_nothing(stage, run):
    lost(stage)
    outcome = run("recover", stage.storage.base_uri, "--dry-run")
    assert (outcome.status, stage.maintenance.jobs()) == (0, ())
    assert "1 of 1 job would be recovered" in outcome.err


def test_a_dry_run_refuses_the_directory_of_another_program_as_the_run_does(stage, run):
    lost(stage)
    foreign = f"{stage.storage.base_uri}/{job_id_of(JOB)}/chk-20260801/notes"
    stage.storage.write_bytes(foreign, b"not a checkpoint")
    dry, real = (run("recover", stage.storage.base_uri, *options, "-o", "json") for options in (("--dry-run",), ()))
    assert (dry.status, dry.out) == (real.status, real.out)
    assert (dry.status, "0 of 1 job would be recovered" in dry.err, stage.maintenance.jobs()) == (1, True, ())
    assert "found 20260801" in dry.out


def test_a_job_with_rows_is_told_with_status_1(stage, run):
    stage.run()
    before = stage.maintenance.describe(job_id_of(JOB))
    outcome = run("recover", stage.storage.base_uri, "--job", JOB)
    assert outcome.status == 1
    assert stage.maintenance.describe(job_id_of(JOB)) == before


def test_a_job_of_which_nothing_is_left_is_wrong_usage(stage, run):
    lost(stage)
    assert run("recover", stage.storage.base_uri, "--job", "another").status == 2


def test_a_directory_without_jobs_or_savepoints_is_wrong_usage_and_recovers_nothing(stage, run, tmp_path):
    lost(stage)
    base, mistyped = stage.storage.base_uri, f"file://{tmp_path}/mistyped"
    for arguments in ((mistyped,), (mistyped, "--savepoints", base), (base, "--savepoints", mistyped)):
        outcome = run("recover", *arguments)
        assert (outcome.status, stage.maintenance.jobs()) == (2, ())
        assert ", found none; correct the" in outcome.err


def test_gc_with_quarantine_deletes_an_orphan_a_day_later(stage, run):
    dead = stage.attempt()
    stage.snapshot(dead, "orphan")
    dead.finish(AttemptStatus.FAILED)
    outcome = run("gc", "--yes", JOB, "--quarantine", "-o", "json")
    (row,) = rows(outcome)
    assert (outcome.status, row["directories"], len(row["quarantined"])) == (0, [], 1)
    stage.clock.advance(DAY)
    assert rows(run("gc", "--yes", JOB, "--quarantine", "--quarantine-age", "2d", "-o", "json"))[0]["directories"] == []
    (row,) = rows(run("gc", "--yes", JOB, "--quarantine", "-o", "json"))
    assert (len(row["directories"]), row["quarantined"]) == (1, [])


def test_an_age_without_a_quarantine_is_refused_and_deletes_nothing(stage, run):
    dead = stage.attempt()
    stage.snapshot(dead, "orphan")
    dead.finish(AttemptStatus.FAILED)
    before = stage.files()
    outcome = run("gc", "--yes", JOB, "--quarantine-age", "7d")
    assert (outcome.status, "add --quarantine" in outcome.err, stage.files()) == (2, True, before)


def test_a_quarantine_shorter_than_a_day_is_wrong_usage(stage, run):
    stage.run()
    assert run("gc", "--yes", JOB, "--quarantine", "--quarantine-age", "1h").status == 2
