"""
F1: checkpoints of many subtasks in merged files, compared with one file for each piece of state.

Both sides write the same bytes to local files through the same storage in one thread. Every checkpoint is durable before the
next one starts. Two checkpoints are retained.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.layout import checkpoint_uri, epoch_name, job_uri
from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope
from airflow_provider_statecheck.storage.file_merging.manager import (
    FileMergingOptions,
    FileMergingSnapshotManager,
    FileMergingType,
)
from airflow_provider_statecheck.storage.file_merging.physical_files import SubtaskKey, manager_id
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from benchmarks.measure import Result, in_turn, median_ratio, medians, seconds

JOB, OPERATOR = job_id_of("f1"), operator_id_of("totals")
STATES, CHECKPOINTS, STATE_BYTES = 5, 5, 4096
DATA = bytes(range(256)) * (STATE_BYTES // 256)


@dataclass(frozen=True, slots=True)
class Written:
    """Result of one run of one side."""

    seconds: float
    files: float
    """Number of files written by all checkpoints."""
    bytes_left: float
    """Bytes on disk at the end, for two retained checkpoints."""


def run(work: Path, *, quick: bool) -> list[Result]:
    """Measure with 200 subtasks of five states each, or with 5 subtasks if ``quick``."""
    subtasks, pairs = (5, 1) if quick else (200, 5)
    found: list[Result] = []
    for merging_type in FileMergingType:
        for scope in CheckpointedStateScope:
            found.extend(_compare(work, subtasks, pairs, merging_type, scope))
    return found


def _compare(
    work: Path, subtasks: int, pairs: int, merging_type: FileMergingType, scope: CheckpointedStateScope
) -> list[Result]:
    ours: list[Written] = []
    theirs: list[Written] = []

    def read(side: Callable[[CheckpointStorage, int], int], results: list[Written]) -> float:
        results.append(_measured(work, lambda storage: side(storage, subtasks)))
        return results[-1].seconds

    def merged(storage: CheckpointStorage, subtasks: int) -> int:
        return _merged(storage, subtasks, merging_type, scope)

    times = in_turn(lambda: read(merged, ours), lambda: read(_one_file_each, theirs), pairs)
    both = list(zip(ours, theirs, strict=True))[1:]
    sizes = {"subtasks": subtasks, "states": STATES, "checkpoints": CHECKPOINTS, "state_bytes": STATE_BYTES}
    name = f"{merging_type.value}, {scope.value}"
    files = [[o.files / CHECKPOINTS, t.files / CHECKPOINTS] for o, t in both]
    left = [[o.bytes_left, t.bytes_left] for o, t in both]
    return [
        _result(f"{name}: files per checkpoint", "files", files, sizes),
        _result(f"{name}: time", "s", times, sizes),
        _result(f"{name}: bytes left", "bytes", left, sizes),
    ]


def _measured(work: Path, side: Callable[[CheckpointStorage], int]) -> Written:
    folder = work / uuid.uuid4().hex
    storage = CheckpointStorage.open(str(folder))
    counted: list[int] = []
    taken = seconds(lambda: counted.append(side(storage)))
    left = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    shutil.rmtree(folder)
    return Written(taken, float(counted[0]), float(left))


def _merged(
    storage: CheckpointStorage, subtasks: int, merging_type: FileMergingType, scope: CheckpointedStateScope
) -> int:
    manager = FileMergingSnapshotManager(manager_id(JOB, "1"), 1, FileMergingOptions(merging_type=merging_type))
    root = job_uri(storage.base_uri, JOB)
    manager.init_file_system(
        storage, base=root, shared=f"{root}/shared", taskowned=f"{root}/taskowned", write_buffer_size=STATE_BYTES
    )
    keys = [
        SubtaskKey(job_id=JOB, operator_id=OPERATOR, subtask_index=i, parallelism=subtasks) for i in range(subtasks)
    ]
    for key in keys:
        manager.register_subtask(key)
    written: set[str] = set()
    for checkpoint_id in range(1, CHECKPOINTS + 1):
        for key in keys:
            written |= _write_states(manager, key, checkpoint_id, scope)
        for key in keys:
            manager.make_durable(key, checkpoint_id)
        for key in keys:
            manager.notify_checkpoint_subsumed(key, checkpoint_id - 2)
    manager.close()
    return len(written)


def _write_states(
    manager: FileMergingSnapshotManager, key: SubtaskKey, checkpoint_id: int, scope: CheckpointedStateScope
) -> set[str]:
    uris: set[str] = set()
    for _ in range(STATES):
        stream = manager.create_checkpoint_state_output_stream(key, checkpoint_id, scope)
        stream.write(DATA)
        handle = stream.close_and_get_handle()
        assert handle is not None
        uris.add(handle.uri)
    return uris


def _one_file_each(storage: CheckpointStorage, subtasks: int) -> int:
    for checkpoint_id in range(1, CHECKPOINTS + 1):
        directory = checkpoint_uri(storage.base_uri, JOB, checkpoint_id)
        for _ in range(subtasks * STATES):
            storage.write_bytes(f"{directory}/{epoch_name(1)}", DATA)
        if checkpoint_id > 2:
            storage.delete_directory(checkpoint_uri(storage.base_uri, JOB, checkpoint_id - 2))
    return CHECKPOINTS * subtasks * STATES


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
