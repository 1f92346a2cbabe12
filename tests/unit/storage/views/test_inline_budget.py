"""The total of what travels in handles is bounded."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from airflow_provider_statecheck.checkpoint.ids import epoch_of
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    DistributionMode,
    FileStateHandle,
    OperatorState,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorSubtaskState,
    StreamStateHandle,
    streams_of,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import read_state
from airflow_provider_statecheck.storage.views.state_streams import DEFAULT_INLINE_BUDGET, spill_above_budget
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_storage
from tests.unit.storage.views.places import ATTEMPT, files

META = (("list", OperatorStateMeta((0,), DistributionMode.SPLIT_DISTRIBUTE)),)


def _state(*streams: StreamStateHandle, coordinator: StreamStateHandle | None = None) -> OperatorState:
    return OperatorState(
        operator_id=ATTEMPT.operator_id,
        uid="totals",
        parallelism=max(1, len(streams)),
        max_parallelism=128,
        subtask_states={
            i: OperatorSubtaskState(managed_operator=(OperatorStateHandle(META, s),)) for i, s in enumerate(streams)
        },
        coordinator_state=coordinator,
    )


def _inline(name: str, size: int) -> ByteStreamStateHandle:
    return ByteStreamStateHandle(name, (name * size).encode()[:size])


def _inline_bytes(states: tuple[OperatorState, ...]) -> int:
    streams = {s for state in states for s in streams_of(state) if isinstance(s, ByteStreamStateHandle)}
    return sum(s.state_size for s in streams)


def test_what_fits_stays_in_its_handles(storage: CheckpointStorage, job: str) -> None:
    states = (_state(_inline("a", 5), coordinator=_inline("b", 5)),)
    assert spill_above_budget(states, storage, directory=f"{job}/chk-1", epoch=3, budget=10) == states
    assert files(storage) == set()


def test_the_largest_go_to_files_until_the_rest_fits(storage: CheckpointStorage, job: str) -> None:
    states = (_state(_inline("a", 4), _inline("b", 9)), _state(_inline("c", 6), coordinator=_inline("d", 2)))
    spilled = spill_above_budget(states, storage, directory=f"{job}/chk-1", epoch=3, budget=12)
    streams = [s for state in spilled for s in streams_of(state)]
    assert [isinstance(s, FileStateHandle) for s in streams] == [False, True, False, False]
    assert [read_state(storage, s) for s in streams] == [read_state(storage, s) for x in states for s in streams_of(x)]
    assert _inline_bytes(spilled) == 12


def test_files_lie_in_the_checkpoint_and_carry_the_epoch(storage: CheckpointStorage, job: str) -> None:
    spill_above_budget((_state(_inline("a", 4)),), storage, directory=f"{job}/chk-1", epoch=3, budget=0)
    (uri,) = files(storage)
    assert uri.startswith(f"{job}/chk-1/")
    assert epoch_of(uri.rpartition("/")[2]) == 3


def test_state_that_is_named_twice_counts_and_goes_once(storage: CheckpointStorage, job: str) -> None:
    same = _inline("a", 6)
    assert spill_above_budget((_state(same, same),), storage, directory=f"{job}/chk-1", epoch=3, budget=6) == (
        _state(same, same),
    )
    spill_above_budget((_state(same, same),), storage, directory=f"{job}/chk-1", epoch=3, budget=5)
    assert len(files(storage)) == 1


@pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
@pytest.mark.parametrize("point", [1, 2])
def test_repeating_after_a_failure_gives_the_same_states_and_files(
    storage: CheckpointStorage, job: str, mode: FaultMode, point: int
) -> None:
    states, directory = (_state(_inline("a", 6), _inline("b", 6)),), f"{job}/chk-1"
    with pytest.raises(StorageError, match="Injected"):
        spill_above_budget(
            states, faulty_storage(storage, FaultPlan(point, mode)), directory=directory, epoch=3, budget=0
        )
    first = spill_above_budget(states, storage, directory=directory, epoch=3, budget=0)
    assert spill_above_budget(states, storage, directory=directory, epoch=3, budget=0) == first
    assert len(files(storage)) == 2


def test_a_budget_below_zero_is_refused(storage: CheckpointStorage, job: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="inline budget"):
        spill_above_budget((), storage, directory=f"{job}/chk-1", epoch=3, budget=-1)


def test_the_budget_is_16_mib_where_nothing_is_said() -> None:
    assert DEFAULT_INLINE_BUDGET == 16 * 1024 * 1024


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(sizes=st.lists(st.integers(1, 20), max_size=8), budget=st.integers(0, 60))
def test_the_rest_fits_and_no_byte_is_lost(memory: CheckpointStorage, sizes: list[int], budget: int) -> None:
    states = (_state(*(_inline(chr(97 + i), size) for i, size in enumerate(sizes))),)
    spilled = spill_above_budget(
        states, memory, directory=f"{memory.base_uri}/{'a' * 32}/chk-1", epoch=3, budget=budget
    )
    assert _inline_bytes(spilled) <= budget
    before, after = ([read_state(memory, s) for s in streams_of(x[0])] for x in (states, spilled))
    assert before == after
