"""The command that lists and removes what the provider keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.cli import uninstall_command
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.maintenance.gc import prune_job
from airflow_provider_statecheck.metadata.tables import METADATA
from tests.unit.cli.conftest import Run, rows
from tests.unit.written_stage import JOB, WrittenStage, local_path


def tables(stage: WrittenStage) -> set[str]:
    return set(inspect(stage.store.engine).get_table_names())  # type: ignore[attr-defined]


def test_lists_tables_with_rows_and_directories_of_jobs_with_sizes(stage: WrittenStage, run: Run) -> None:
    stage.run()
    found = rows(run("uninstall", "--dry-run", "-o", "json"))
    of_tables = {row["name"]: row["database_rows"] for row in found if row["kind"] == "table"}
    assert of_tables.keys() == METADATA.tables.keys()
    assert of_tables["statecheck_checkpoint"] == 3
    directory = f"{stage.storage.base_uri}/{job_id_of(JOB)}"
    (row,) = (row for row in found if row["kind"] == "directory")
    assert (row["name"], row["job"], row["bytes"]) == (directory, JOB, sum(stage.files().values()))


def test_removes_the_tables_and_leaves_the_files_from_which_the_jobs_can_be_recovered(
    stage: WrittenStage, run: Run
) -> None:
    stage.run()
    before = stage.files()
    outcome = run("uninstall", "--yes")
    assert (outcome.status, tables(stage), stage.files()) == (0, set(), before)
    assert "airflow statecheck recover" in outcome.err
    assert "Nothing to remove" in run("uninstall", "--yes").err


def test_with_storage_removes_the_files_of_all_jobs_but_no_savepoint(stage: WrittenStage, run: Run) -> None:
    for job in (JOB, "test/other"):
        stage.run(job)
    (savepoint,) = rows(run("savepoint", JOB, "-o", "json"))
    stranger = local_path(f"{stage.storage.base_uri}/notes/kept.txt")
    stranger.parent.mkdir()
    stranger.write_text("of the user")
    listed = rows(run("uninstall", "--storage", "--dry-run", "-o", "json"))
    assert savepoint["pointer"] in [row["name"] for row in listed if row["kind"] == "savepoint"]
    outcome = run("uninstall", "--storage", "--yes")
    assert (outcome.status, tables(stage)) == (0, set())
    assert list(map(local_path, stage.files())) == [Path("notes/kept.txt")]
    assert Path(local_path(savepoint["pointer"])).exists()
    assert savepoint["pointer"] in outcome.err


def test_keeps_the_tables_while_files_of_a_job_cannot_be_deleted(
    stage: WrittenStage, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.run("done")
    running = stage.attempt()
    outcome = run("uninstall", "--storage", "--yes")
    assert (outcome.status, f"such as {JOB}: nothing is removed before" in outcome.err) == (1, True)
    assert (tables(stage), stage.maintenance.describe(job_id_of("done")).job.name) == (set(METADATA.tables), "done")
    running.finish(AttemptStatus.FINISHED)

    def away(base: str) -> None:
        raise StorageError("The storage is away.")

    with monkeypatch.context() as patch:
        patch.setattr(uninstall_command, "guarded_storage_opener", lambda conn_id: away)
        outcome = run("uninstall", "--storage", "--yes")
        assert (outcome.status, "The storage is away" in outcome.err) == (1, True)
    assert run("uninstall", "--storage", "--yes").status == 0
    assert (stage.files(), tables(stage)) == ({}, set())


def test_removes_nothing_while_an_attempt_runs_and_says_what_to_do(stage: WrittenStage, run: Run) -> None:
    attempt = stage.attempt()
    for more in ("--dry-run",), ("--yes",), ("--yes", "--storage"):
        outcome = run("uninstall", *more, "-o", "json")
        assert f"such as {JOB}: nothing is removed before. Pause the Dags" in outcome.err
        assert (outcome.status, tables(stage)) == (int("--yes" in more), set(METADATA.tables))
    attempt.finish(AttemptStatus.FINISHED)
    assert (run("uninstall", "--yes").status, tables(stage)) == (0, set())


def test_keeps_the_tables_if_a_job_registers_while_files_are_removed(
    stage: WrittenStage, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.run()

    def with_newcomer(*told: Any) -> Any:
        stage.attempt("newcomer")
        return prune_job(*told)

    monkeypatch.setattr(uninstall_command, "prune_job", with_newcomer)
    outcome = run("uninstall", "--storage", "--yes")
    assert (outcome.status, tables(stage)) == (1, set(METADATA.tables))
    assert "registered while files were removed" in outcome.err


def test_tells_a_program_what_it_has_removed(stage: WrittenStage, run: Run) -> None:
    stage.run()
    removed = rows(run("uninstall", "--storage", "--yes", "-o", "json"))
    assert {row["name"] for row in removed if row["kind"] == "table"} == set(METADATA.tables)
    assert [row["job"] for row in removed if row["kind"] == "directory"] == [JOB]
    assert rows(run("uninstall", "--yes", "-o", "json")) == []
