"""
A stage fails at each kind of durable step, in the long runs at every single call.

The next try ends as if nothing had happened.

The steps are the calls on storage and gateway that have an effect. In the long runs each call fails in every way, else
the last two of each kind fail, and the ways take turns. The points are counted in a run without a fault. Each case runs
in a child process of its own, so that a kill is a kill.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.spark.restore import load_candidate
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument
from airflow_provider_statecheck.testing.faults import READING_CALLS, FaultMode
from tests.crash import pipeline
from tests.crash.tries import SIGKILLED, Tries, share


@dataclass(frozen=True)
class Ways:
    """How calls fail; the modes take turns."""

    modes: tuple[FaultMode, ...]
    also_reads: bool = True
    of_each_kind: int | None = None
    """Number of calls of each kind that fail, counted from the last one; ``None`` for all."""

    def faults(self, calls: list[str]) -> list[tuple[int, FaultMode]]:
        """Return the number of each call that fails, from 1, and how it fails."""
        points = [i for i, name in enumerate(calls, 1) if self._fails(calls, i, name)]
        faults = [(point, self.modes[i % len(self.modes)]) for i, point in enumerate(points)]
        # Of a call that only reads no reply can be lost.
        return [f for f in faults if f[1] is not FaultMode.REPLY_LOST or calls[f[0] - 1] not in READING_CALLS]

    def _fails(self, calls: list[str], point: int, name: str) -> bool:
        is_chosen = self.of_each_kind is None or calls[point:].count(name) < self.of_each_kind
        return is_chosen and (self.also_reads or name not in READING_CALLS)


def _undisturbed(tries: Tries) -> dict[str, Any]:
    tries.reset(None)
    assert tries.run() == 0
    return tries.outcome()


def _loaded(storage: CheckpointStorage, checkpoint: CheckpointRecord) -> CheckpointDocument:
    return load_candidate(storage, checkpoint, (), frozenset(), omits_damaged=False).document


def _check_recomputed(work: Path, once: Counter[str]) -> None:
    """At most the step in progress was computed twice: one snapshot or item, with the item around it."""
    again = Counter(pipeline.computed_steps(work)) - once
    assert sum(again.values()) <= 2
    assert len({step.split()[-1] for step in again}) <= 1


def _check_point(tries: Tries, prepared: Path | None, point: int, mode: FaultMode, expected: Any) -> None:
    once = Counter(["numbers", "item 1", "item 2", "multiples 1", "multiples 2"])
    if prepared is not None:
        once = Counter(pipeline.computed_steps(prepared)) + Counter(["item 2", "multiples 2"])
    tries.reset(prepared)
    status = tries.run(point=point, mode=mode)
    where = f"{mode} at call {point}, status {status} "
    if mode in (FaultMode.KILL, FaultMode.KILL_AFTER):
        assert status == SIGKILLED, where
    if status != 0:
        assert tries.run() == 0, where + tries.error()
    assert tries.outcome()["result"] == expected, where
    tries.check_bytes(pipeline.JOB, _loaded)
    _check_recomputed(tries.work, once)


def _faults(tries: Tries, prepared: Path | None, ways: Ways) -> list[tuple[int, FaultMode]]:
    """Return the points and modes at which the calls of a try without a fault are to fail."""
    tries.reset(prepared)
    assert tries.run() == 0
    calls = tries.outcome()["calls"]
    assert len(calls) > 20
    return ways.faults(calls)


def _check_every_fault(team: list[Tries], prepared: list[Path | None], ways: Ways, expected: Any) -> None:
    share(
        team,
        _faults(team[0], prepared[0], ways),
        lambda member, fault: _check_point(team[member], prepared[member], *fault, expected),
    )


def _failed_halfway(tries: Tries, keep: Path) -> Path:
    tries.reset(None)
    assert tries.run(fail_at=2) != 0
    shutil.copytree(tries.work, keep)
    return keep


IN_TURN = (FaultMode.ERROR, FaultMode.KILL, FaultMode.REPLY_LOST)
WAYS = [
    pytest.param(Ways(IN_TURN, also_reads=False, of_each_kind=2), id="the last two of each kind in turn"),
    pytest.param(Ways(IN_TURN, also_reads=False), id="each in turn", marks=pytest.mark.soak),
    pytest.param(Ways(IN_TURN), id="each in turn, also of calls that only read", marks=pytest.mark.soak),
    *(pytest.param(Ways((mode,)), id=mode.value, marks=pytest.mark.soak) for mode in FaultMode),
]


@pytest.mark.spark
@pytest.mark.parametrize("ways", WAYS)
def test_fresh_try_that_fails_at_any_call_is_made_good_by_the_next(team: list[Tries], ways: Ways) -> None:
    expected = _undisturbed(team[0])["result"]
    _check_every_fault(team, [None] * len(team), ways, expected)


@pytest.mark.spark
@pytest.mark.parametrize("ways", WAYS)
def test_resuming_try_that_fails_at_any_call_is_made_good_by_the_next(
    team: list[Tries], ways: Ways, tmp_path: Path
) -> None:
    expected = _undisturbed(team[0])["result"]
    prepared: list[Path | None] = [_failed_halfway(tries, tmp_path / str(i)) for i, tries in enumerate(team)]
    _check_every_fault(team, prepared, ways, expected)
