"""What pages show of a stage with state: source, states, commits, durations, and what a retry restored."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary, SourceSummary
from airflow_provider_statecheck.spark.stages.stage_state import StageStates
from tests.soak import rest_in_soak
from tests.spark.stages.functions import FailingOnce, RunningBalance
from tests.spark.stages.stage_tries import StageTries
from tests.spark.stages.test_stage import FILES, PAYMENTS, balances, payments, running_stage


def states(summary: CheckpointSummary | None) -> dict[str, tuple[str, str]]:
    assert summary is not None
    return {state.name: (state.kind, state.type) for state in summary.states}


@pytest.mark.parametrize("backend", rest_in_soak(["arrow", "hashmap"], "arrow"))
def test_a_checkpoint_shows_its_source_its_states_and_what_it_took(tries: StageTries, backend: str) -> None:
    parts = payments()
    tries.write_input(*parts)
    tries.run(running_stage(tries, RunningBalance(), state_backend=backend))
    first, *_, last = (c.summary for c in sorted(tries.view().checkpoints, key=lambda c: c.checkpoint_id))
    assert first is not None
    assert last is not None
    (source,) = first.sources
    assert (source.uid, source.finished_splits, source.total_splits) == ("source", 1, FILES)
    assert source.remaining_seconds is not None
    assert last.sources == (
        SourceSummary(uid="source", finished_splits=FILES, total_splits=FILES, remaining_seconds=0.0),
    )
    assert states(last) == {"balance": ("value", "int64"), "purposes": ("map", "string to int64")}
    keys = {state.name: state.keys for state in first.states}
    assert keys == {"balance": len(balances(parts[:1])), "purposes": None}
    assert {state.uid for state in last.states} == {"balance"}
    assert last.open_commits == (f"output of checkpoint {FILES}: {last.open_commits[0].split()[4]} pieces",)
    assert last.snapshot_seconds > 0
    assert last.write_seconds > 0
    assert last.commit_seconds is not None
    assert last.commit_seconds > 0


@pytest.mark.soak
def test_a_retry_shows_what_it_restored_and_the_time_of_the_increments_before(tries: StageTries) -> None:
    tries.write_input(*payments())
    stage = running_stage(tries, FailingOnce(tries.folder / "failed", number=2 * PAYMENTS + 7))
    with pytest.raises(Exception, match="planned"):
        tries.run(stage)
    tries.run(stage)
    first, retry = tries.view().attempts
    assert first.restored_summary is not None
    assert first.restored_summary.sources == (), "it has restored nothing"
    assert first.restored_summary.rows_per_second is not None
    assert first.restored_summary.checkpoint_share is not None
    restored = retry.restored_summary
    assert restored is not None
    assert restored.sources == (SourceSummary(uid="source", finished_splits=2, total_splits=FILES),)
    assert restored.seconds_saved > 0
    assert set(states(restored)) == {"balance", "purposes"}
    last = tries.view().checkpoints[-1].summary
    assert last is not None
    assert last.seconds_saved == restored.seconds_saved


def test_figures_that_cannot_be_computed_fail_no_stage(tries: StageTries, monkeypatch: Any) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no figures")

    monkeypatch.setattr(StageStates, "summaries", broken)
    tries.write_input(*payments())
    assert tries.run(running_stage(tries, RunningBalance())).increments == FILES
