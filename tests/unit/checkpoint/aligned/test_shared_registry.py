"""Files that several checkpoints name."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from airflow_provider_statecheck.checkpoint.aligned.completed_checkpoint import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.aligned.shared_state_registry import SharedStateKey, SharedStateRegistry
from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, RestoreMode
from airflow_provider_statecheck.checkpoint.states.handles import (
    FileStateHandle,
    IncrementalKeyedStateHandle,
    OperatorSubtaskState,
    PlaceholderStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.testing.aligned_job import HeldExecutor
from tests.unit.checkpoint.aligned.completed import (
    OPERATOR,
    RecordingDiscarder,
    completed,
    file,
    incremental,
    keyed,
    operator_state,
    sharing,
)

KEY = SharedStateKey(OPERATOR, "backend", "1.sst")
OTHER = SharedStateKey(OPERATOR, "backend", "2.sst")


@pytest.fixture
def discarder() -> RecordingDiscarder:
    return RecordingDiscarder()


@pytest.fixture
def registry(discarder) -> SharedStateRegistry:
    return SharedStateRegistry(discarder)


class TestRegistering:
    def test_a_file_under_an_unknown_key_is_a_new_entry(self, registry):
        assert registry.register(KEY, file("a"), 3) == file("a")
        entry = registry.entries[KEY]
        assert (entry.created_by, entry.last_used, entry.is_confirmed) == (3, 3, False)

    def test_a_placeholder_under_an_unknown_key_is_refused(self, registry):
        with pytest.raises(CoordinatorError, match=r"'1\.sst'.*placeholder"):
            registry.register(KEY, PlaceholderStateHandle(), 3)
        assert registry.entries == {}

    def test_a_placeholder_stands_for_what_is_known(self, registry):
        registry.register(KEY, file("a"), 3)
        assert registry.register(KEY, PlaceholderStateHandle(), 4) == file("a")
        assert registry.entries[KEY].last_used == 4

    def test_the_same_file_again_changes_only_who_used_it_last(self, registry, discarder):
        registry.register(KEY, file("a"), 3)
        assert registry.register(KEY, file("a"), 5) == file("a")
        entry = registry.entries[KEY]
        assert (entry.created_by, entry.last_used) == (3, 5)
        assert discarder.calls == []

    def test_a_late_message_does_not_turn_back_who_used_it_last(self, registry):
        registry.register(KEY, file("a"), 5)
        registry.register(KEY, file("a"), 3)
        assert registry.entries[KEY].last_used == 5

    def test_another_file_for_a_confirmed_one_is_deleted(self, registry, discarder):
        registry.register(KEY, file("a"), 3)
        registry.checkpoint_completed(3)
        assert registry.register(KEY, file("b"), 4) == file("a")
        assert registry.entries[KEY].last_used == 4
        assert discarder.calls == ["state b"]

    def test_another_file_takes_the_place_of_an_unconfirmed_one(self, registry):
        registry.register(KEY, file("a"), 3)
        assert registry.register(KEY, file("b"), 4) == file("b")
        assert registry.register(KEY, PlaceholderStateHandle(), 5) == file("b")

    def test_the_one_that_lost_its_place_goes_when_no_checkpoint_can_name_it(self, registry, discarder):
        registry.register(KEY, file("a"), 3)
        registry.register(KEY, file("b"), 4)
        registry.unregister_unused(3)
        # Checkpoint 3 was pending all the while, and may have been completed.
        assert discarder.calls == []
        registry.unregister_unused(4)
        assert discarder.calls == ["state a"]

    def test_handles_of_one_file_are_never_each_others_copy(self, registry, discarder):
        registry.register(KEY, file("a"), 3)
        registry.checkpoint_completed(3)
        registry.register(KEY, replace(file("a"), sha256="ab" * 32), 4)
        assert discarder.calls == []

    def test_a_copy_that_is_known_under_another_key_stays(self, registry, discarder):
        registry.register(OTHER, file("b"), 3)
        registry.register(KEY, file("a"), 3)
        registry.checkpoint_completed(3)
        registry.register(KEY, file("b"), 4)
        assert discarder.calls == []


class TestConfirming:
    def test_only_what_the_checkpoint_used_last_is_confirmed(self, registry):
        registry.register(KEY, file("a"), 3)
        registry.register(OTHER, file("b"), 4)
        registry.checkpoint_completed(3)
        assert [registry.entries[k].is_confirmed for k in (KEY, OTHER)] == [True, False]

    def test_what_is_confirmed_stays_so(self, registry):
        registry.register(KEY, file("a"), 3)
        registry.checkpoint_completed(3)
        registry.register(KEY, file("a"), 4)
        assert registry.entries[KEY].is_confirmed


class TestUnregistering:
    def test_a_file_that_no_retained_checkpoint_uses_is_deleted(self, registry, discarder):
        registry.register(KEY, file("a"), 3)
        registry.register(OTHER, file("b"), 4)
        assert registry.unregister_unused(4) == frozenset()
        assert discarder.calls == ["state a"]
        assert list(registry.entries) == [OTHER]

    def test_a_file_of_an_unclaimed_snapshot_is_forgotten_and_not_deleted(self, registry, discarder):
        restored = sharing(3, {"1.sst": file("a")})
        registry.register_all_after_restored(restored, RestoreMode.NO_CLAIM)
        assert registry.unregister_unused(4) == frozenset()
        assert discarder.calls == []
        assert registry.entries == {}

    def test_a_file_that_came_after_the_unclaimed_snapshot_is_deleted(self, registry, discarder):
        registry.register_all_after_restored(sharing(3, {}), RestoreMode.NO_CLAIM)
        registry.register(KEY, file("b"), 4)
        registry.unregister_unused(5)
        assert discarder.calls == ["state b"]

    def test_a_file_of_a_claimed_snapshot_is_deleted(self, registry, discarder):
        registry.register_all_after_restored(sharing(3, {"1.sst": file("a")}), RestoreMode.CLAIM)
        registry.unregister_unused(4)
        assert discarder.calls == ["state a"]

    def test_a_claimed_savepoint_is_needed_as_long_as_a_file_of_it_is_used(self, registry):
        native = CheckpointProperties.for_savepoint()
        restored = sharing(3, {"1.sst": file("a")}, restored_properties=native)
        registry.register_all_after_restored(restored, RestoreMode.CLAIM)
        registry.register_all(sharing(4, {"1.sst": PlaceholderStateHandle()}).operator_states.values(), 4)
        assert registry.unregister_unused(4) == {3}
        assert registry.unregister_unused(5) == frozenset()

    def test_a_restored_checkpoint_is_not_needed_for_its_shared_files(self, registry):
        registry.register_all_after_restored(sharing(3, {"1.sst": file("a")}), RestoreMode.CLAIM)
        registry.register(SharedStateKey(OPERATOR, "b", "1.sst"), PlaceholderStateHandle(), 4)
        assert registry.unregister_unused(4) == frozenset()

    def test_an_entry_that_prevents_it_keeps_its_checkpoint(self, registry):
        registry.register(KEY, file("a"), 3, prevents_discard=True)
        registry.register(KEY, file("a"), 4)
        assert registry.unregister_unused(4) == {3}

    def test_a_file_known_under_two_keys_goes_with_the_last(self, registry, discarder):
        registry.register(KEY, file("a"), 3)
        registry.register(OTHER, file("a"), 4)
        registry.unregister_unused(4)
        assert discarder.calls == []
        registry.unregister_unused(5)
        assert discarder.calls == ["state a"]

    def test_a_failed_delete_stops_nothing(self, registry, discarder, caplog):
        registry.register(KEY, file("a"), 3)
        registry.register(OTHER, file("b"), 3)
        discarder.failing = {"state a"}
        registry.unregister_unused(4)
        assert discarder.calls == ["state a", "state b"]
        assert "could not be deleted" in caplog.text


class TestRestoring:
    @pytest.mark.parametrize(("mode", "expected"), [(RestoreMode.NO_CLAIM, 5), (RestoreMode.CLAIM, 0)])
    def test_only_without_a_claim_the_snapshot_is_not_ours(self, registry, mode, expected):
        registry.register_all_after_restored(sharing(5, {}), mode)
        registry.register_all_after_restored(sharing(3, {}), mode)
        assert registry.highest_not_claimed_id == expected

    def test_what_is_restored_is_confirmed(self, registry, discarder):
        registry.register_all_after_restored(sharing(3, {"1.sst": file("a")}), RestoreMode.CLAIM)
        key = SharedStateKey(OPERATOR, "b", "1.sst")
        assert registry.register(key, file("b"), 4) == file("a")
        assert discarder.calls == ["state b"]


class TestWholeCheckpoints:
    def test_placeholders_are_replaced_in_every_subtask(self, registry):
        registry.register_all(sharing(3, {"1.sst": file("a")}).operator_states.values(), 3)
        state = sharing(4, {"1.sst": PlaceholderStateHandle(), "2.sst": file("b")}).operator_states[OPERATOR]
        registered = registry.register_all([state], 4)[OPERATOR]
        [handle] = registered.subtask_states[0].managed_keyed
        assert handle.shared == (("1.sst", file("a")), ("2.sst", file("b")))
        assert replace(registered, subtask_states={}) == replace(state, subtask_states={})

    def test_private_state_is_not_registered(self, registry):
        subtask = OperatorSubtaskState(managed_keyed=(keyed(3), incremental(3, {})), raw_keyed=(keyed(3),))
        state = operator_state(subtask)
        assert registry.register_all([state], 3) == {OPERATOR: state}
        assert registry.entries == {}

    def test_equal_paths_of_other_backends_and_operators_are_other_files(self, registry):
        for backend in ("left", "right"):
            subtask = OperatorSubtaskState(raw_keyed=(incremental(3, {"1.sst": file(backend)}, backend=backend),))
            registry.register_all([operator_state(subtask)], 3)
        other = operator_state(
            OperatorSubtaskState(managed_keyed=(incremental(3, {"1.sst": file("x")}, backend="left"),)),
            operator_id=operator_id_of("enrich"),
        )
        registry.register_all([other], 3)
        assert sorted(_uri(e.handle) for e in registry.entries.values()) == [
            "memory://base/left",
            "memory://base/right",
            "memory://base/x",
        ]

    def test_equal_content_of_one_range_is_one_file_whichever_backend_wrote_it(self, registry, discarder):
        path = "sha256:" + "ab" * 32
        first = incremental(3, {path: file("a")}, backend="one")
        registry.register_all([operator_state(OperatorSubtaskState(managed_keyed=(first,)))], 3)
        registry.checkpoint_completed(3)
        second = incremental(4, {path: file("b")}, backend="two")
        states = registry.register_all([operator_state(OperatorSubtaskState(managed_keyed=(second,)))], 4)
        assert states[OPERATOR].subtask_states[0].managed_keyed[0].shared == ((path, file("a")),)
        assert discarder.calls == ["state b"]

    def test_equal_content_of_another_range_is_another_file(self):
        path = "sha256:" + "ab" * 32
        one, two = incremental(3, {}), replace(incremental(3, {}), key_group_range=KeyGroupRange(64, 127))
        assert SharedStateKey.of(OPERATOR, one, path) != SharedStateKey.of(OPERATOR, two, path)


class TestClosing:
    def test_nothing_is_registered_any_more(self, registry):
        registry.close()
        with pytest.raises(CoordinatorError, match="closed"):
            registry.register(KEY, file("a"), 3)

    def test_what_is_being_deleted_goes_on(self, discarder):
        executor = HeldExecutor()
        registry = SharedStateRegistry(discarder, executor)
        registry.register(KEY, file("a"), 3)
        registry.unregister_unused(4)
        registry.close()
        assert discarder.calls == []
        executor.run_all()
        assert discarder.calls == ["state a"]


def test_nothing_is_deleted_while_the_lock_is_held(registry, discarder):
    registry.register(KEY, file("a"), 3)
    seen = []

    def look(handle: FileStateHandle) -> None:
        reader = threading.Thread(target=lambda: seen.append(registry.entries))
        reader.start()
        reader.join(timeout=60)

    discarder.discard_state = look
    registry.unregister_unused(4)
    assert seen == [{}]


def test_many_threads_register_one_file_once(discarder):
    registry = SharedStateRegistry(discarder)
    with ThreadPoolExecutor(8) as pool:
        used = list(pool.map(lambda n: registry.register(KEY, file("a"), n), range(1, 200)))
    assert set(used) == {file("a")}
    assert registry.entries[KEY].last_used == 199


def _uri(handle: StreamStateHandle) -> str:
    assert isinstance(handle, FileStateHandle)
    return handle.uri


class World:
    """A backend that shares files between checkpoints, the registry that watches it, and the retained checkpoints."""

    def __init__(self) -> None:
        self.discarder = RecordingDiscarder()
        self.registry = SharedStateRegistry(self.discarder)
        self.retained: list[CompletedCheckpoint] = []
        self.next_id = 1

    def checkpoint(self, paths: dict[str, bool], *, completes: bool) -> None:
        """Take a checkpoint of these files; those marked so are uploaded again although they are known."""
        number, self.next_id = self.next_id, self.next_id + 1
        known = {key.path for key, entry in self.registry.entries.items() if entry.is_confirmed}
        shared: dict[str, StreamStateHandle] = {
            path: PlaceholderStateHandle() if path in known and not again else file(f"{path}@{number}")
            for path, again in paths.items()
        }
        taken = sharing(number, shared)
        states = self.registry.register_all(taken.operator_states.values(), number)
        if completes:
            self.registry.checkpoint_completed(number)
            self.retained.append(completed(number, *states.values()))

    def subsume(self, keep: int) -> None:
        self.retained = self.retained[-keep:]
        if self.retained:
            self.registry.unregister_unused(self.retained[0].checkpoint_id)

    @property
    def named(self) -> set[str]:
        return {
            _uri(handle)
            for cp in self.retained
            for state in cp.operator_states.values()
            for subtask in state.subtask_states.values()
            for keyed_handle in subtask.managed_keyed
            if isinstance(keyed_handle, IncrementalKeyedStateHandle)
            for _, handle in keyed_handle.shared
        }

    @property
    def deleted(self) -> set[str]:
        return {f"memory://base/{call.removeprefix('state ')}" for call in self.discarder.calls}

    def rebuilt(self) -> SharedStateRegistry:
        registry = SharedStateRegistry(RecordingDiscarder())
        for cp in self.retained:
            registry.register_all_after_restored(cp, RestoreMode.CLAIM)
        return registry


STEPS = st.lists(
    st.tuples(st.dictionaries(st.sampled_from("abcd"), st.booleans(), max_size=4), st.booleans(), st.integers(1, 3)),
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(steps=STEPS)
def test_no_file_that_a_retained_checkpoint_names_is_ever_deleted(steps):
    world = World()
    for paths, completes, keep in steps:
        world.checkpoint(paths, completes=completes)
        world.subsume(keep)
        assert not world.named & world.deleted


@settings(max_examples=200, deadline=None)
@given(steps=STEPS)
def test_a_registry_built_anew_from_the_retained_checkpoints_is_equal(steps):
    world = World()
    for paths, _, keep in steps:
        world.checkpoint(paths, completes=True)
        world.subsume(keep)
    fresh, lived = world.rebuilt().entries, world.registry.entries
    # With which checkpoint a file came is known only as far as that is retained.
    assert {k: replace(e, created_by=0) for k, e in fresh.items()} == {
        k: replace(e, created_by=0) for k, e in lived.items()
    }
    assert all(fresh[k].created_by >= lived[k].created_by for k in fresh)


@settings(max_examples=200, deadline=None)
@given(steps=STEPS)
def test_only_files_of_aborted_checkpoints_are_unknown_to_a_registry_built_anew(steps):
    world = World()
    for paths, completes, keep in steps:
        world.checkpoint(paths, completes=completes)
        world.subsume(keep)
    fresh, lived = world.rebuilt().entries, world.registry.entries
    assert {_uri(e.handle) for e in fresh.values()} == world.named
    completed_ids = {cp.checkpoint_id for cp in world.retained}
    assert all(e.last_used not in completed_ids for k, e in lived.items() if k not in fresh)


@settings(max_examples=100, deadline=None)
@given(steps=STEPS)
def test_every_file_that_nothing_names_is_deleted_in_the_end(steps):
    world = World()
    for paths, completes, keep in steps:
        world.checkpoint(paths, completes=completes)
        world.subsume(keep)
    uploaded = {_uri(e.handle) for e in world.registry.entries.values()}
    world.checkpoint({}, completes=True)
    world.subsume(1)
    assert world.registry.entries == {}
    assert uploaded <= world.deleted
