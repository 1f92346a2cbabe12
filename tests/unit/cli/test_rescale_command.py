"""Another maximum parallelism for a checkpoint, by command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord
from airflow_provider_statecheck.cli import savepoint_commands
from airflow_provider_statecheck.storage.metadata_file import decode_metadata
from tests.unit.cli.conftest import Outcome
from tests.unit.written_stage import WrittenStage

Run = Callable[..., Outcome]


@pytest.fixture
def taken(stage: WrittenStage) -> CheckpointRecord:
    """Return the checkpoint of a job that does not run."""
    attempt = stage.attempt()
    record = stage.take(attempt, stage.snapshot(attempt, "orders"))
    attempt.finish(AttemptStatus.FINISHED)
    return record


def test_the_rescaled_savepoint_lies_below_the_target_and_its_pointer_is_printed(
    stage: WrittenStage, taken: CheckpointRecord, run: Run, tmp_path: Path
) -> None:
    target = f"file://{tmp_path}/rescaled"
    outcome = run("rescale", taken.location, "--max-parallelism", "64", "--target", target, "--output", "json")
    assert outcome.status == 0
    [row] = json.loads(outcome.out)
    assert row["pointer"].startswith(f"{target}/savepoint-{taken.job_id[:6]}-")
    uri = f"{row['pointer']}/_metadata"
    document = decode_metadata(stage.storage.allowing(target).read_bytes(uri), uri=uri)
    assert [handle.name for handle in document.snapshots] == ["orders"]
    assert "is unchanged" in outcome.err


def test_a_checkpoint_that_is_not_there_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    pointer = f"file://{tmp_path}/none/chk-7"
    outcome = run("rescale", pointer, "--max-parallelism", "64", "--target", f"file://{tmp_path}/rescaled")
    assert outcome.status == 2


@pytest.mark.parametrize("given", [(), ("--max-parallelism", "0"), ("--max-parallelism", "many")])
def test_it_takes_a_number_of_key_groups(run: Run, given: tuple[str, ...]) -> None:
    outcome = run("rescale", "file:///chk-7", *given)
    assert outcome.status == 2
    assert "--max-parallelism" in outcome.err


def test_more_key_groups_than_the_limit_are_refused_for_a_checkpoint_without_operator_state(
    taken: CheckpointRecord, run: Run, tmp_path: Path
) -> None:
    target = tmp_path / "rescaled"
    outcome = run("rescale", taken.location, "--max-parallelism", "32769", "--target", f"file://{target}")
    assert (outcome.status, "max_parallelism <= 32768" in outcome.err, target.exists()) == (2, True, False)
    assert run("rescale", taken.location, "--max-parallelism", "32768", "--target", f"file://{target}").status == 0


def test_without_a_target_it_goes_where_savepoints_go_or_nowhere(
    taken: CheckpointRecord, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("rescale", taken.location, "--max-parallelism", "64").status == 0
    monkeypatch.setattr(savepoint_commands, "configured_savepoint_dir", lambda: None)
    outcome = run("rescale", taken.location, "--max-parallelism", "64")
    assert outcome.status == 2
    assert "give --target" in outcome.err
