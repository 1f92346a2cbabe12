"""
F1: checkpoints with merged state files, compared with one file for each state.

Both sides save the keyed state of 4 functions with 3 states each in 16 subtasks, in one thread, on local files and on
an S3 server. A subtask of a function is a Spark task and writes one merged file.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.ids import OperatorId, job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import DEFAULT_LOCATION
from airflow_provider_statecheck.checkpoint.states.handles import (
    KeyGroupRange,
    OperatorState,
    OperatorSubtaskState,
    key_group_range_of,
)
from airflow_provider_statecheck.spark.stages.executor.vertex_task import worker_view
from airflow_provider_statecheck.state.backends import ArrowStateBackend
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.keyed.abstract_backend import StateEnvironment
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch, KeyField, KeySerializer
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from benchmarks.measure import Result, in_turn, median_ratio, medians, seconds
from tests.object_store import Faults, running_object_store

FUNCTIONS, STATES, SUBTASKS, GROUPS = 4, 3, 16, 128
CHECKPOINTS = 3
ATTEMPT = AttemptRef(job_id=job_id_of("f1"), operator_id=operator_id_of("stage"), epoch=1)
SERIALIZER = KeySerializer((KeyField("id", pa.int64()),))


@dataclass(frozen=True, slots=True)
class Written:
    """Result of one run of one side."""

    seconds: float
    files: float
    """Number of files for each checkpoint."""
    bytes: float
    """Size of these files."""
    puts: float
    """Number of PUT requests for each checkpoint; 0 for local files."""


def run(work: Path, *, quick: bool) -> list[Result]:
    """Measure with 80,000 keys, or with 8,000 and one pair if ``quick``."""
    keys, pairs = (8_000, 1) if quick else (80_000, 5)
    local = _compare("local files", keys, pairs, lambda: CheckpointStorage.open(str(work / uuid.uuid4().hex)), Faults())
    with running_object_store() as store:
        base = f"s3://{store.bucket}"
        return [
            *local,
            *_compare(
                "S3",
                keys,
                pairs,
                lambda: CheckpointStorage.open(f"{base}/{uuid.uuid4().hex}", **store.storage_options),
                store.faults,
            ),
        ]


def _compare(
    name: str, keys: int, pairs: int, open_storage: Callable[[], CheckpointStorage], requests: Faults
) -> list[Result]:
    merged: list[Written] = []
    separate: list[Written] = []

    def read(results: list[Written], *, is_merged: bool) -> float:
        results.append(_measured(open_storage(), keys, requests, is_merged=is_merged))
        return results[-1].seconds

    times = in_turn(lambda: read(merged, is_merged=True), lambda: read(separate, is_merged=False), pairs)
    both = list(zip(merged, separate, strict=True))[1:]
    sizes = {"keys": keys, "functions": FUNCTIONS, "states": STATES, "subtasks": SUBTASKS, "checkpoints": CHECKPOINTS}
    figures = [
        _result(f"{name}: time", "s", times, sizes),
        _result(f"{name}: files per checkpoint", "files", [[m.files, s.files] for m, s in both], sizes),
        _result(f"{name}: bytes per checkpoint", "bytes", [[m.bytes, s.bytes] for m, s in both], sizes),
    ]
    if any(m.puts for m, _ in both):
        figures.append(_result(f"{name}: PUTs per checkpoint", "requests", [[m.puts, s.puts] for m, s in both], sizes))
    return figures


def _measured(storage: CheckpointStorage, keys: int, requests: Faults, *, is_merged: bool) -> Written:
    config = CheckpointConfig()
    config.file_merging_enabled = is_merged
    job = _Job(storage, config, keys)
    requests.clear()
    taken = seconds(job.save_all)
    puts = requests.count("PUT") / CHECKPOINTS
    files = storage.list_files(storage.base_uri)
    return Written(taken, len(files) / CHECKPOINTS, sum(files.values()) / CHECKPOINTS, puts)


class _Job:
    """Writes the same keyed state in each checkpoint."""

    def __init__(self, storage: CheckpointStorage, config: CheckpointConfig, keys: int) -> None:
        self._storage = storage
        self._config = config
        self._ids = np.arange(keys)
        self._groups = np.asarray(SERIALIZER.key_groups_of([pa.array(self._ids)], GROUPS))

    def save_all(self) -> None:
        for checkpoint_id, function, subtask in product(range(1, CHECKPOINTS + 1), range(FUNCTIONS), range(SUBTASKS)):
            self._save_subtask(checkpoint_id, operator_id_of(f"stage/{function}"), subtask)

    def _save_subtask(self, checkpoint_id: int, operator_id: OperatorId, subtask: int) -> None:
        owned = key_group_range_of(subtask, SUBTASKS, GROUPS)
        backend: Any = ArrowStateBackend().create_keyed_state_backend(
            self._environment(), ATTEMPT.job_id, operator_id, SERIALIZER, GROUPS, owned
        )
        batch = self._batch(owned)
        for number in range(STATES):
            values = np.random.default_rng(number).integers(0, 1 << 60, len(batch))
            backend.batch_state(ValueStateDescriptor(f"state-{number}", pa.int64())).put(batch, pa.array(values))
        view = worker_view(self._storage, ATTEMPT, self._config, ())
        streams = view.resolve_checkpoint_storage_location(checkpoint_id, DEFAULT_LOCATION)
        keyed = backend.snapshot(checkpoint_id, 0, streams).run().handle
        backend.dispose()
        state = OperatorState(
            operator_id=operator_id,
            uid=operator_id,
            parallelism=SUBTASKS,
            max_parallelism=GROUPS,
            subtask_states={subtask: OperatorSubtaskState(managed_keyed=(keyed,))},
        )
        view.make_durable([state])

    def _environment(self) -> StateEnvironment:
        return StateEnvironment(
            storage=self._storage,
            now_ms=lambda: 0,
        )

    def _batch(self, owned: KeyGroupRange) -> KeyBatch:
        rows = np.flatnonzero((self._groups >= owned.start) & (self._groups <= owned.end))
        rows = rows[np.argsort(self._groups[rows], kind="stable")]
        return KeyBatch(pa.array(self._groups[rows], pa.int32()), (pa.array(self._ids[rows]),))


def _result(case: str, unit: str, readings: list[list[float]], sizes: dict[str, int]) -> Result:
    ours, peer = medians(readings)
    return Result(
        id="F1",
        case=case,
        ours=ours,
        peer=peer,
        unit=unit,
        ratio=median_ratio(readings),
        goal=None,
        pairs=readings,
        sizes=dict(sizes),
    )
