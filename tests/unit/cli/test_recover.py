"""The command that makes rows anew, and the quarantine of gc."""

from __future__ import annotations

import json

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.written_stage import JOB, WrittenStage

DAY = 24 * 3600


def lost(stage: WrittenStage) -> WrittenStage:
    """Write a job whose rows are in no database."""
    other = WrittenStage(CheckpointStorage.open(stage.storage.base_uri))
    other.run()
    return other


def test_jobs_are_recovered_and_can_be_listed(stage, run):
    lost(stage)
    outcome = run("recover", stage.storage.base_uri, "-o", "json")
    (row,) = json.loads(outcome.out)
    assert (outcome.status, row["job"], row["recovered"], len(row["checkpoints"])) == (0, JOB, True, 3)
    assert run("verify", JOB).status == 0
    assert stage.attempt().restore() is not None


def test_a_dry_run_makes_nothing(stage, run):
    lost(stage)
    outcome = run("recover", stage.storage.base_uri, "--dry-run")
    assert (outcome.status, stage.maintenance.jobs()) == (0, ())
    assert "1 of 1 jobs would be recovered" in outcome.err


def test_a_dry_run_refuses_the_directory_of_another_program_as_the_run_does(stage, run):
    lost(stage)
    foreign = f"{stage.storage.base_uri}/{job_id_of(JOB)}/chk-20260801/notes"
    stage.storage.write_bytes(foreign, b"not a checkpoint")
    dry, real = (run("recover", stage.storage.base_uri, *options, "-o", "json") for options in (("--dry-run",), ()))
    assert (dry.status, dry.out) == (real.status, real.out)
    assert (dry.status, "0 of 1 jobs would be recovered" in dry.err, stage.maintenance.jobs()) == (1, True, ())
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


def test_gc_with_quarantine_deletes_an_orphan_a_day_later(stage, run):
    dead = stage.attempt()
    stage.snapshot(dead, "orphan")
    dead.finish(AttemptStatus.FAILED)
    outcome = run("gc", JOB, "--quarantine", "-o", "json")
    (row,) = json.loads(outcome.out)
    assert (outcome.status, row["directories"], len(row["quarantined"])) == (0, [], 1)
    stage.clock.advance(DAY)
    assert (
        json.loads(run("gc", JOB, "--quarantine", "--quarantine-age", "2d", "-o", "json").out)[0]["directories"] == []
    )
    (row,) = json.loads(run("gc", JOB, "--quarantine", "-o", "json").out)
    assert (len(row["directories"]), row["quarantined"]) == (1, [])


def test_an_age_without_a_quarantine_is_refused_and_deletes_nothing(stage, run):
    dead = stage.attempt()
    stage.snapshot(dead, "orphan")
    dead.finish(AttemptStatus.FAILED)
    before = stage.files()
    outcome = run("gc", JOB, "--quarantine-age", "7d")
    assert (outcome.status, "add --quarantine" in outcome.err, stage.files()) == (2, True, before)


def test_a_quarantine_shorter_than_a_day_is_wrong_usage(stage, run):
    stage.run()
    assert run("gc", JOB, "--quarantine", "--quarantine-age", "1h").status == 2
