"""State of several kinds in merged files: what is restored, and how much space is wasted."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import DEFAULT_LOCATION
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    KeyedStateHandle,
    OperatorState,
    OperatorSubtaskState,
    SegmentFileStateHandle,
    StreamStateHandle,
    streams_of_subtask,
)
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.storage.views.checkpoint_storages import FsCheckpointStorageAccess
from airflow_provider_statecheck.storage.views.state_files import FileMergingSnapshotManager
from airflow_provider_statecheck.storage.views.state_streams import StateWriting
from tests.unit.state.arrow.harness import GROUPS, Job

ATTEMPT = AttemptRef(job_id=job_id_of("job"), operator_id=operator_id_of("operator"), epoch=1)
LARGE, SMALL = ValueStateDescriptor("large", str), ValueStateDescriptor("small", int)


@dataclass
class Environment:
    restored_streams: Any


def save(job: Job, backend: Any, state: OperatorSubtaskState, limit: float) -> OperatorSubtaskState:
    """Save a subtask as a task of a stage does."""
    writing = StateWriting(epoch=ATTEMPT.epoch, inline_threshold=0)
    access = FsCheckpointStorageAccess(job.storage, ATTEMPT, writing=writing)
    config = CheckpointConfig()
    config.file_merging_max_space_amplification = limit
    manager = FileMergingSnapshotManager(ATTEMPT.epoch, config)
    view = access.to_file_merging_storage(manager, Environment(streams_of_subtask(state)))
    streams = view.resolve_checkpoint_storage_location(1, DEFAULT_LOCATION)
    keyed = (backend.snapshot(1, 0, streams).run().handle,)
    backend.dispose()
    operator = OperatorState(
        operator_id=ATTEMPT.operator_id,
        uid="operator",
        parallelism=1,
        max_parallelism=GROUPS,
        subtask_states={0: OperatorSubtaskState(managed_keyed=keyed)},
    )
    return view.make_durable([operator])[0].subtask_states[0]


def rounds(job: Job, limit: float) -> tuple[list[KeyedStateHandle], list[float]]:
    """
    Rewrite a large state and a part of a small one again and again.

    Return the last state, and the amplifications.
    """
    state, found = OperatorSubtaskState(), []
    for number in range(12):
        backend = job.open(*state.managed_keyed)
        for key in range(20):
            backend.set_current_key(key)
            job.state(backend, LARGE).update(f"{number}-" * 300)
        backend.set_current_key(number)
        job.state(backend, SMALL).update(number)
        state = save(job, backend, state, limit)
        found.append(amplification(job, state))
    return list(state.managed_keyed), found


def amplification(job: Job, state: OperatorSubtaskState) -> float:
    (handle,) = state.managed_keyed
    assert isinstance(handle, KeyedStateHandle)
    shared: list[StreamStateHandle] = [stream for _, stream in handle.shared]
    segments = [each for each in shared if isinstance(each, SegmentFileStateHandle)]
    stored = sum(job.storage.size(uri) for uri in {each.uri for each in segments})
    return stored / max(1, sum(each.length for each in segments))


@pytest.mark.parametrize("limit", [1.2, float("inf")])
def test_state_survives_whatever_is_rewritten(tmp_path: Path, limit: float) -> None:
    job = Job(tmp_path)
    handles, _ = rounds(job, limit)
    backend = job.open(*handles)
    for key in range(12):
        backend.set_current_key(key)
        assert (job.state(backend, SMALL).value(), job.state(backend, LARGE).value()) == (key, "11-" * 300)


def test_dead_segments_are_bounded_by_the_limit(tmp_path: Path) -> None:
    _, bounded = rounds(Job(tmp_path / "bounded"), 1.2)
    _, unbounded = rounds(Job(tmp_path / "unbounded"), float("inf"))
    assert max(unbounded) > 1.2
    # What a checkpoint leaves dead is only seen by the next one.
    assert all(min(pair) <= 1.2 for pair in pairwise(bounded))
    assert sum(bounded) < sum(unbounded)


def test_two_states_of_a_subtask_are_one_file(tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.open()
    backend.set_current_key(1)
    job.state(backend, LARGE).update("x")
    job.state(backend, SMALL).update(1)
    state = save(job, backend, OperatorSubtaskState(), 2.0)
    places = {each.uri for each in streams_of_subtask(state) if not isinstance(each, ByteStreamStateHandle)}
    assert len(job.files()) == len(places) == 2, "shared state, and the description in the checkpoint"
