"""
The contract of a store of state handles, as a suite for rows in any database.

Subclass :class:`StateHandleStoreContract` and give the fixtures ``clock``, ``gateway`` (a coordinator over the same
database) and ``rows`` (the handles of :data:`JOB` and :data:`OPERATOR`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_statecheck.checkpoint.gateway import CheckpointCoordinatorGateway
from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import FinishAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.checkpoint.state_handle_store import HandleRow, HandleRows, LeasedStateHandleStore
from airflow_provider_statecheck.checkpoint.state_pointers import ResourceVersion, StatePointer
from airflow_provider_statecheck.exceptions import (
    CommitStateUnknownError,
    CoordinatorUnavailableError,
    CorruptStateError,
    HandleExistsError,
    HandleNotFoundError,
    InvalidConfigurationError,
    ResourceVersionError,
    StaleAttemptError,
    StorageError,
)
from airflow_provider_statecheck.testing.clock import ManualClock
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan
from airflow_provider_statecheck.testing.memory_store import InMemoryStates
from airflow_provider_statecheck.testing.messages import make_registration
from tests.contracts.handle_faults import FaultyHandleRows, FaultyStates

JOB = job_id_of("sales")
OPERATOR = operator_id_of("aggregate")
LEASE = 60.0
ZERO = ResourceVersion(0)
Store = LeasedStateHandleStore[bytes]


class _OneName(InMemoryStates):
    """Gives every state the same pointer, as a storage that names bytes by their content does for equal ones."""

    def store(self, state: bytes) -> StatePointer:
        self.bytes["memory://same"] = state
        return StatePointer(uri="memory://same", size=len(state), sha256="")


class _LongNames(InMemoryStates):
    """Gives pointers that no row can hold."""

    def store(self, state: bytes) -> StatePointer:
        pointer = super().store(state)
        long = pointer.uri + "x" * 70_000
        self.bytes[long] = self.bytes.pop(pointer.uri)
        return StatePointer(uri=long, size=pointer.size, sha256="")


class _Discarding(InMemoryStates):
    """Lets something happen while state is discarded."""

    def __init__(self, target: InMemoryStates, happens: Callable[[], None]) -> None:
        super().__init__()
        self._target = target
        self._happens = happens

    def discard(self, pointer: StatePointer) -> None:
        self._target.discard(pointer)
        self._happens()


class _Outdated(FaultyHandleRows):
    """Reads what was there before anything was added."""

    def find(self, name: str) -> HandleRow | None:
        return None


class _Unlisted(FaultyHandleRows):
    """Refuses to read all rows."""

    def read(self) -> tuple[HandleRow, ...]:
        raise AssertionError("all rows were read")


class StateHandleStoreContract:
    """What holds for every store of state handles."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Return the clock that coordinator and rows use."""
        return ManualClock()

    @pytest.fixture(autouse=True)
    def _stores(self, gateway: CheckpointCoordinatorGateway, rows: HandleRows) -> None:
        self.coordinator, self.handle_rows, self.states = gateway, rows, InMemoryStates()
        self.attempt = gateway.register(make_registration()).attempt
        self.store, self.other = self.open(), self.open()

    def open(self, plan: FaultPlan | None = None, states: InMemoryStates | None = None) -> Store:
        """Return another store of the present attempt, whose calls a plan may count."""
        plan = plan or FaultPlan()
        states = states or self.states
        rows = FaultyHandleRows(self.handle_rows, plan)
        return LeasedStateHandleStore(rows, FaultyStates(states, plan), self.attempt, lease_seconds=LEASE)

    def failing(self, point: int, mode: FaultMode, times: int = 1) -> Store:
        """Return a store of which some calls fail."""
        return self.open(FaultPlan(point=point, mode=mode, times=times))

    def put(self, row: HandleRow) -> None:
        """Write a row past the store."""
        with self.handle_rows.transaction() as tx:
            tx.save(row)

    def corrupt(self, name: str = "a") -> None:
        self.put(HandleRow(name=name, handle=b"\x80 no handle"))

    def left_dying(self) -> None:
        """Leave a handle whose removal began and could not delete the bytes."""
        self.store.add_and_lock("a", b"1")
        self.store.release_all()
        with pytest.raises(StorageError):
            self.failing(2, FaultMode.ERROR).release_and_try_remove("a")

    def kept(self) -> list[bytes]:
        """Return all state that was not discarded."""
        return sorted(self.states.bytes.values())

    def state(self, name: str = "a") -> bytes:
        return self.open().get_and_lock(name).retrieve_state()

    def fence(self) -> None:
        self.coordinator.register(make_registration())

    def end(self) -> None:
        self.coordinator.finish(FinishAttempt(attempt=self.attempt, status=AttemptStatus.FINISHED))

    # --- versions and pointers

    def test_versions_are_ordered_and_not_existing_comes_first(self) -> None:
        assert ResourceVersion.not_existing() < ZERO < ResourceVersion(1)
        assert not ResourceVersion.not_existing().is_existing
        with pytest.raises(TypeError):
            assert ZERO < 1  # type: ignore[operator]

    def test_a_handle_gives_state_and_size_and_discards_it_twice(self) -> None:
        handle = self.store.add_and_lock("a", b"123")
        assert (handle.retrieve_state(), handle.get_state_size()) == (b"123", 3)
        handle.discard_state()
        handle.discard_state()
        assert self.kept() == []

    @pytest.mark.parametrize("name", [None, "", "x" * 256, "a\0"])
    def test_a_name_that_is_none_is_refused_before_anything_is_written(self, name: str) -> None:
        for call in (lambda: self.store.add_and_lock(name, b"1"), lambda: self.store.replace(name, ZERO, b"1")):
            with pytest.raises(InvalidConfigurationError):
                call()
        assert self.kept() == []

    def test_no_state_is_refused_before_anything_is_written(self) -> None:
        with pytest.raises(InvalidConfigurationError):
            self.store.add_and_lock("a", None)  # type: ignore[arg-type]
        assert self.store.get_all_handles() == []

    # --- add

    def test_add_gives_version_zero_and_a_lock_with_the_row(self) -> None:
        self.store.add_and_lock("a", b"1")
        assert self.other.exists("a") == ZERO
        assert not self.other.release_and_try_remove("a")

    def test_add_of_a_name_that_exists_discards_the_new_state(self) -> None:
        self.store.add_and_lock("a", b"1")
        with pytest.raises(HandleExistsError):
            self.other.add_and_lock("a", b"2")
        assert (self.kept(), self.state()) == ([b"1"], b"1")

    def test_add_that_finds_its_own_handle_is_success(self) -> None:
        states = _OneName()
        self.open(states=states).add_and_lock("a", b"1")
        self.open(states=states).add_and_lock("a", b"1")
        assert list(states.bytes.values()) == [b"1"]

    def test_add_finishes_a_removal_that_began(self) -> None:
        self.left_dying()
        self.store.add_and_lock("a", b"2")
        assert (self.kept(), self.store.exists("a")) == ([b"2"], ZERO)

    def test_add_that_cannot_finish_a_removal_discards_the_new_state(self) -> None:
        self.left_dying()
        with pytest.raises(StorageError):
            self.failing(4, FaultMode.ERROR).add_and_lock("a", b"2")
        assert self.kept() == [b"1"]

    def test_add_overwrites_a_row_that_cannot_be_read(self) -> None:
        self.corrupt()
        self.store.add_and_lock("a", b"2")
        assert self.state() == b"2"

    def test_add_whose_state_cannot_be_stored_leaves_no_row(self) -> None:
        with pytest.raises(StorageError):
            self.failing(1, FaultMode.ERROR).add_and_lock("a", b"1")
        assert (self.store.get_all_handles(), self.kept()) == ([], [])

    def test_a_handle_too_large_for_a_row_discards_the_new_state(self) -> None:
        states = _LongNames()
        with pytest.raises(InvalidConfigurationError):
            self.open(states=states).add_and_lock("a", b"1")
        assert states.bytes == {}

    def test_add_that_was_lost_before_its_commit_is_a_definite_failure(self) -> None:
        with pytest.raises(CoordinatorUnavailableError):
            self.failing(2, FaultMode.ERROR).add_and_lock("a", b"1")
        assert (self.store.get_all_handles(), self.kept()) == ([], [])

    def test_add_whose_reply_was_lost_is_success(self) -> None:
        store = self.failing(2, FaultMode.REPLY_LOST)
        store.add_and_lock("a", b"1")
        assert (self.state(), self.kept()) == (b"1", [b"1"])

    @pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
    def test_add_of_unknown_outcome_deletes_nothing(self, mode: FaultMode) -> None:
        with pytest.raises(CommitStateUnknownError):
            self.failing(2, mode, times=2).add_and_lock("a", b"1")
        assert self.kept() == [b"1"]

    def test_add_of_a_fenced_attempt_discards_the_new_state(self) -> None:
        self.fence()
        with pytest.raises(StaleAttemptError):
            self.store.add_and_lock("a", b"1")
        assert (self.store.get_all_handles(), self.kept()) == ([], [])

    # --- replace

    def test_replace_raises_the_version_and_discards_the_old_state(self) -> None:
        self.store.add_and_lock("a", b"1")
        self.store.replace("a", ZERO, b"2")
        assert (self.store.exists("a"), self.state(), self.kept()) == (ResourceVersion(1), b"2", [b"2"])

    def test_replace_whose_discard_fails_says_so_after_the_commit(self) -> None:
        self.store.add_and_lock("a", b"1")
        with pytest.raises(StorageError):
            self.failing(3, FaultMode.ERROR).replace("a", ZERO, b"2")
        assert self.state() == b"2"

    def test_replace_of_a_missing_name_writes_nothing(self) -> None:
        plan = FaultPlan()
        with pytest.raises(HandleNotFoundError):
            self.open(plan).replace("a", ZERO, b"2")
        assert "store" not in plan.calls

    def test_replace_of_a_name_that_vanishes_meanwhile_discards_the_new_state(self) -> None:
        self.store.add_and_lock("a", b"1")
        with pytest.raises(HandleNotFoundError):
            self.meanwhile(self.store.clear_entries).replace("a", ZERO, b"2")
        assert self.kept() == [b"1"]

    def test_replace_of_a_name_replaced_meanwhile_discards_the_new_state(self) -> None:
        self.store.add_and_lock("a", b"1")
        with pytest.raises(ResourceVersionError):
            self.meanwhile(lambda: self.store.replace("a", ZERO, b"3")).replace("a", ZERO, b"2")
        assert (self.kept(), self.state()) == ([b"3"], b"3")

    def test_replace_of_a_name_being_removed_finishes_the_removal(self) -> None:
        self.left_dying()
        with pytest.raises(HandleNotFoundError):
            self.store.replace("a", ZERO, b"2")
        assert (self.kept(), self.store.get_all_handles()) == ([], [])

    def test_replace_notes_that_a_removal_cannot_be_finished(self) -> None:
        self.left_dying()
        with pytest.raises(HandleNotFoundError) as caught:
            self.failing(2, FaultMode.ERROR).replace("a", ZERO, b"2")
        assert "Injected" in caught.value.__notes__[0]
        assert self.kept() == [b"1"]

    def test_replace_of_another_version_changes_nothing(self) -> None:
        self.store.add_and_lock("a", b"1")
        with pytest.raises(ResourceVersionError):
            self.store.replace("a", ResourceVersion(1), b"2")
        assert (self.kept(), self.store.exists("a")) == ([b"1"], ZERO)

    def test_replace_that_was_lost_before_its_commit_is_a_definite_failure(self) -> None:
        self.store.add_and_lock("a", b"1")
        with pytest.raises(CoordinatorUnavailableError):
            self.failing(2, FaultMode.ERROR).replace("a", ZERO, b"2")
        assert (self.kept(), self.state()) == ([b"1"], b"1")

    def test_replace_whose_reply_was_lost_is_success(self) -> None:
        self.store.add_and_lock("a", b"1")
        self.failing(2, FaultMode.REPLY_LOST).replace("a", ZERO, b"2")
        assert (self.kept(), self.state()) == ([b"2"], b"2")

    @pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
    def test_replace_of_unknown_outcome_keeps_both_states(self, mode: FaultMode) -> None:
        self.store.add_and_lock("a", b"1")
        with pytest.raises(CommitStateUnknownError):
            self.failing(2, mode, times=2).replace("a", ZERO, b"2")
        assert self.kept() == [b"1", b"2"]

    def test_replace_of_a_fenced_attempt_discards_the_new_state(self) -> None:
        self.store.add_and_lock("a", b"1")
        with pytest.raises(StaleAttemptError):
            self.meanwhile(self.fence).replace("a", ZERO, b"2")
        assert (self.kept(), self.store.exists("a")) == ([b"1"], ZERO)

    def meanwhile(self, happens: object) -> Store:
        """Return a store during whose writing of state something happens."""
        target = self.states

        class Meanwhile(InMemoryStates):
            def store(self, state: bytes) -> StatePointer:
                pointer = target.store(state)
                happens()  # type: ignore[operator]
                return pointer

            def discard(self, pointer: StatePointer) -> None:
                target.discard(pointer)

        return self.open(states=Meanwhile())

    # --- exists, get, list

    def test_exists_neither_sees_missing_nor_dying_nor_unreadable_rows(self) -> None:
        self.left_dying()
        self.corrupt("b")
        assert [self.store.exists(n).is_existing for n in ("a", "b", "c")] == [False] * 3
        assert self.store.get_all_handles() == ["a", "b"]

    def test_asking_for_one_name_reads_no_other(self) -> None:
        self.store.add_and_lock("a", b"1")
        store = LeasedStateHandleStore(_Unlisted(self.handle_rows, FaultPlan()), self.states, self.attempt)
        store.replace("a", store.exists("a"), b"2")
        assert store.exists("a") == ResourceVersion(1)

    def test_a_view_of_the_job_tells_where_the_state_of_its_handles_lies(self) -> None:
        uris = [self.store.add_and_lock(name, b"1").pointer.uri for name in ("a", "b")]
        assert self.coordinator.describe(JOB).handle_uris == tuple(sorted(uris))
        self.store.release_and_try_remove("a")
        assert self.coordinator.describe(JOB).handle_uris == (uris[1],)

    def test_where_a_handle_cannot_be_read_nobody_knows_which_state_is_in_use(self) -> None:
        self.corrupt()
        assert self.coordinator.describe(JOB).handle_uris is None

    def test_exists_takes_no_lock(self) -> None:
        self.store.add_and_lock("a", b"1")
        self.other.exists("a")
        assert self.store.release_and_try_remove("a")

    def test_get_locks_against_removal_by_others(self) -> None:
        self.store.add_and_lock("a", b"1")
        assert self.other.get_and_lock("a").retrieve_state() == b"1"
        assert not self.store.release_and_try_remove("a")

    def test_get_of_a_missing_or_dying_name_is_not_found(self) -> None:
        self.left_dying()
        for name in ("a", "b"):
            with pytest.raises(HandleNotFoundError):
                self.store.get_and_lock(name)

    def test_get_of_an_unreadable_row_leaves_no_lock(self) -> None:
        self.corrupt()
        with pytest.raises(CorruptStateError):
            self.other.get_and_lock("a")
        assert self.store.release_and_try_remove("a")

    def test_get_all_locks_what_can_be_read_and_skips_the_rest(self) -> None:
        self.left_dying()
        self.corrupt("b")
        self.store.add_and_lock("c", b"3")
        assert [(h.retrieve_state(), name) for h, name in self.other.get_all_and_lock()] == [(b"3", "c")]
        assert [self.store.release_and_try_remove(n) for n in ("a", "b", "c")] == [True, True, False]

    # --- locks

    def test_a_second_lock_of_one_store_is_given_up_with_the_first(self) -> None:
        self.store.add_and_lock("a", b"1")
        self.store.get_and_lock("a")
        self.store.release("a")
        assert self.other.release_and_try_remove("a")

    def test_stores_that_share_a_holder_share_its_locks(self) -> None:
        ours = [LeasedStateHandleStore(self.handle_rows, self.states, self.attempt, holder="h") for _ in range(2)]
        ours[0].add_and_lock("a", b"1")
        assert not self.other.release_and_try_remove("a")
        assert ours[1].release_and_try_remove("a")

    def test_release_without_a_lock_does_nothing(self) -> None:
        self.store.add_and_lock("a", b"1")
        self.other.release("a")
        self.other.release("b")
        self.other.release_all()
        assert not self.other.release_and_try_remove("a")
        assert self.kept() == [b"1"]

    def test_release_all_gives_up_every_lock_of_this_store(self) -> None:
        for name in ("a", "b"):
            self.store.add_and_lock(name, b"1")
        self.store.release_all()
        assert self.other.release_and_try_remove_all()

    def test_a_lock_ends_with_its_lease_unless_renewed(self, clock: ManualClock) -> None:
        self.store.add_and_lock("a", b"1")
        clock.advance(LEASE - 1)
        self.store.renew_locks()
        clock.advance(LEASE - 1)
        assert not self.other.release_and_try_remove("a")
        clock.advance(1)
        assert self.other.release_and_try_remove("a")

    def test_a_clock_that_was_far_ahead_lets_no_lock_live_longer_than_an_hour(self, clock: ManualClock) -> None:
        clock.advance(24 * 3600)
        self.store.add_and_lock("a", b"1")
        clock.advance(-24 * 3600)
        assert not self.other.release_and_try_remove("a")
        clock.advance(3600)
        assert self.other.release_and_try_remove("a")

    @pytest.mark.parametrize("seconds", [0.0, -1.0, 3601.0])
    def test_a_lease_out_of_range_is_refused(self, seconds: float) -> None:
        with pytest.raises(InvalidConfigurationError, match="lease_seconds"):
            LeasedStateHandleStore(self.handle_rows, self.states, self.attempt, lease_seconds=seconds)

    # --- remove

    def test_remove_discards_the_state_and_deletes_the_row(self) -> None:
        self.store.add_and_lock("a", b"1")
        assert self.store.release_and_try_remove("a")
        assert (self.kept(), self.store.get_all_handles()) == ([], [])

    def test_remove_of_a_name_that_never_was_is_success(self) -> None:
        assert self.store.release_and_try_remove("a")

    def test_remove_under_the_lock_of_another_gives_up_the_own_lock_only(self) -> None:
        self.store.add_and_lock("a", b"1")
        self.other.get_and_lock("a")
        assert not self.store.release_and_try_remove("a")
        assert self.kept() == [b"1"]
        assert self.other.release_and_try_remove("a")

    def test_remove_by_a_fenced_attempt_keeps_row_and_state(self) -> None:
        self.store.add_and_lock("a", b"1")
        self.fence()
        assert not self.store.release_and_try_remove("a")
        assert (self.kept(), self.store.exists("a")) == ([b"1"], ZERO)

    def test_a_fenced_attempt_finishes_no_removal(self) -> None:
        self.left_dying()
        self.fence()
        with pytest.raises(HandleNotFoundError):
            self.store.replace("a", ZERO, b"2")
        assert self.kept() == [b"1"]

    def test_an_attempt_fenced_during_a_removal_leaves_the_row_marked(self) -> None:
        self.store.add_and_lock("a", b"1")
        self.store.release_all()
        assert not self.open(states=_Discarding(self.states, self.fence)).release_and_try_remove("a")
        assert (self.kept(), self.store.get_all_handles()) == ([], ["a"])
        assert not self.store.exists("a").is_existing

    def test_a_name_added_after_a_replace_missed_it_stays(self) -> None:
        self.store.add_and_lock("a", b"1")
        self.store.release_all()
        late = LeasedStateHandleStore(_Outdated(self.handle_rows, FaultPlan()), self.states, self.attempt)
        with pytest.raises(HandleNotFoundError):
            late.replace("a", ZERO, b"2")
        assert (self.kept(), self.state()) == ([b"1"], b"1")

    def test_of_many_adds_at_once_one_succeeds(self) -> None:
        def add(number: int) -> bool:
            try:
                self.open().add_and_lock("a", str(number).encode())
            except HandleExistsError:
                return False
            return True

        with ThreadPoolExecutor(4) as threads:
            assert sorted(threads.map(add, range(4))) == [False, False, False, True]
        assert self.kept() == [self.state()]

    def test_remove_whose_discard_fails_can_be_repeated(self) -> None:
        self.left_dying()
        assert (self.store.get_all_handles(), self.kept()) == (["a"], [b"1"])
        assert self.store.release_and_try_remove("a")
        assert (self.store.get_all_handles(), self.kept()) == ([], [])

    def test_remove_of_an_unreadable_row_deletes_it(self) -> None:
        self.corrupt()
        assert self.store.release_and_try_remove("a")
        assert self.store.get_all_handles() == []

    @pytest.mark.parametrize("point", [1, 2, 3])
    @pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
    def test_remove_that_fails_at_any_step_never_leaves_a_handle_without_state(
        self, point: int, mode: FaultMode
    ) -> None:
        self.store.add_and_lock("a", b"1")
        self.store.release_all()
        if point == 1 or (point, mode) == (3, FaultMode.REPLY_LOST):
            assert self.failing(point, mode).release_and_try_remove("a")
        else:
            with pytest.raises((CommitStateUnknownError, CoordinatorUnavailableError, StorageError)):
                self.failing(point, mode).release_and_try_remove("a")
        if self.store.exists("a").is_existing:
            assert self.kept() == [b"1"]
        assert self.store.release_and_try_remove("a")
        assert (self.store.get_all_handles(), self.kept()) == ([], [])

    @pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
    def test_remove_whose_claim_is_of_unknown_outcome_deletes_nothing(self, mode: FaultMode) -> None:
        self.store.add_and_lock("a", b"1")
        self.store.release_all()
        with pytest.raises(CommitStateUnknownError):
            self.failing(1, mode, times=2).release_and_try_remove("a")
        assert self.kept() == [b"1"]
        assert self.store.release_and_try_remove("a")
        assert self.kept() == []

    def test_remove_all_tries_every_name_and_attaches_later_errors(self) -> None:
        for name in ("a", "b", "c"):
            self.store.add_and_lock(name, name.encode())
        self.store.release_all()
        # The discard of the first name, and both claims of each of the others.
        with pytest.raises(StorageError) as caught:
            self.failing(2, FaultMode.ERROR, times=5).release_and_try_remove_all()
        assert len(caught.value.__notes__) == 2
        with pytest.raises(StorageError):
            self.failing(2, FaultMode.ERROR).release_and_try_remove_all()
        assert (self.store.get_all_handles(), self.kept()) == (["a"], [b"a"])
        assert self.store.release_and_try_remove_all()
        assert (self.store.get_all_handles(), self.kept()) == ([], [])

    def test_clear_removes_rows_and_keeps_state(self) -> None:
        self.store.add_and_lock("a", b"1")
        self.store.clear_entries()
        assert (self.store.get_all_handles(), self.kept()) == ([], [b"1"])

    def test_an_attempt_that_has_ended_changes_nothing(self) -> None:
        self.store.add_and_lock("a", b"1")
        self.end()
        with pytest.raises(StaleAttemptError):
            self.store.add_and_lock("b", b"2")
        with pytest.raises(StaleAttemptError):
            self.store.replace("a", ZERO, b"2")
        assert not self.store.release_and_try_remove("a")
        assert (self.kept(), self.state()) == ([b"1"], b"1")

    def test_clear_of_a_fenced_attempt_is_refused(self) -> None:
        self.store.add_and_lock("a", b"1")
        self.fence()
        with pytest.raises(StaleAttemptError):
            self.store.clear_entries()
        assert self.store.get_all_handles() == ["a"]
