"""
Contract of a source of a stage as a test suite.

Subclass :class:`SourceContract`, define the methods ``source`` and ``append``, and provide a fixture ``spark``. Each
test appends rows to a target of its own, and reads them like a stage, or like a step in parts. Attributes tell which
features the source has; tests of other features are skipped.
"""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from airflow_provider_statecheck.exceptions import CorruptStateError, SourceChangedError, SourceRestartRequiredError
from airflow_provider_statecheck.spark.connectors.enumerator import ItemEnumerator, moved_pieces, state_after
from airflow_provider_statecheck.spark.connectors.source import Increment, Source, SplitEnumerator
from airflow_provider_statecheck.storage.stored_json import decode_state, encode_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLICIES = ("fail", "ignore", "restart")
_APPENDS, _KEYS_PER_APPEND = 3, 2
_STEPS = 5  # of a stage with one increment
_MANY = 2**40


def stored(enumerator: SplitEnumerator) -> Any:
    """Return the state of a source as the next attempt gets it from a checkpoint."""
    return decode_state(json.loads(json.dumps(encode_state(enumerator.snapshot()))))


def increments_of(enumerator: SplitEnumerator) -> list[Increment]:
    """Return the increments that are left, without reading them."""
    return list(iter(enumerator.next_increment, None))


class SourceContract(ABC):
    """
    Contract of every source of a stage.

    The input of a test is a target, by default a directory, to which ``append`` adds rows. Each row has a key, a whole
    number; keys never repeat, and rows that are appended later have larger keys.
    """

    key: ClassVar[str] = "id"
    """Name of the column with the keys."""
    policies: ClassVar[tuple[str, ...]] = ()
    """Values of the argument ``on_change`` that the source has."""
    appends_are_changes: ClassVar[bool] = False
    """Whether input that appears within a run is a change; otherwise it belongs to the next run in any case."""
    notices_changes_within_run: ClassVar[bool] = True
    """Whether a retry notices a change of rows that were read; otherwise only the next run does."""
    splits_per_increment: ClassVar[int] = 1
    """Limit of the source that ``source`` returns."""
    other_limits: ClassVar[Sequence[Mapping[str, Any]]] = ()
    """Other limits of an increment, as arguments of ``source``."""
    works_in_parts: ClassVar[bool] = False
    """Whether the source can be the input of a step in parts, which needs an ``ItemEnumerator``."""
    storage_options: ClassVar[Mapping[str, Any]] = {}
    """Options of the filesystem of the stage, which the source gets when it is opened."""
    secrets: ClassVar[tuple[str, ...]] = ()
    """Texts in the arguments of the source, or in ``storage_options``, that must not appear anywhere."""

    change: ClassVar[Callable[[Any, Any], None] | None] = None
    """Method ``change(self, target)`` that changes rows of the first append, which were read; ``None`` for no test."""
    lose: ClassVar[Callable[[Any, Any], None] | None] = None
    """Method ``lose(self, target)`` that deletes the last append, which was not read yet; ``None`` for no test."""

    @abstractmethod
    def source(self, target: Any, **settings: Any) -> Source:
        """
        Return a source that reads the target, in increments of ``splits_per_increment`` splits.

        :param settings: Arguments that replace those of the source: ``on_change``, or one of ``other_limits``.
        """

    @abstractmethod
    def append(self, target: Any, keys: Sequence[int]) -> None:
        """Add one row per key to the target, in at least one split of its own."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> Any:
        """Return an empty target."""
        target = tmp_path / "input"
        target.mkdir()
        return target

    def keys_of(self, enumerator: SplitEnumerator, increment: Increment) -> list[int]:
        """Return the keys of the rows of an increment."""
        return [row[0] for row in enumerator.load(increment).select(self.key).collect()]

    # --- reading

    def test_all_increments_together_have_each_row_once(self, spark: SparkSession, target: Any) -> None:
        expected = self._fill(target)
        assert sorted(self._read(self._open(spark, target))) == expected

    def test_increments_have_consecutive_numbers_and_no_split_in_common(self, spark: SparkSession, target: Any) -> None:
        self._fill(target)
        enumerator = self._open(spark, target)
        planned = increments_of(enumerator)
        assert [each.number for each in planned] == list(range(1, len(planned) + 1))
        names = [split.split_id for each in planned for split in each.splits]
        assert len(names) == len(set(names))
        assert enumerator.next_increment() is None

    def test_an_increment_loaded_twice_has_the_same_rows(self, spark: SparkSession, target: Any) -> None:
        self._fill(target)
        enumerator = self._open(spark, target)
        increment = self._following(enumerator)
        assert sorted(self.keys_of(enumerator, increment)) == sorted(self.keys_of(enumerator, increment)) != []

    def test_an_increment_stays_unchanged_while_its_input_does(self, spark: SparkSession, target: Any) -> None:
        self._fill(target)
        enumerator = self._open(spark, target)
        increment = self._following(enumerator)
        enumerator.require_unchanged(increment)
        self.keys_of(enumerator, increment)
        enumerator.require_unchanged(increment)

    def test_progress_ends_when_all_increments_are_finished(self, spark: SparkSession, target: Any) -> None:
        self._fill(target)
        enumerator = self._open(spark, target)
        seen = [(enumerator.finished_splits, enumerator.finished_bytes or 0)]
        for increment in increments_of(enumerator):
            enumerator.finish(increment)
            seen.append((enumerator.finished_splits, enumerator.finished_bytes or 0))
        assert seen == sorted(seen)
        assert seen[0] == (0, 0)
        assert (enumerator.finished_splits, enumerator.finished_bytes) == (
            enumerator.total_splits,
            enumerator.total_bytes,
        )

    def test_sizes_are_known_of_all_increments_or_of_none(self, spark: SparkSession, target: Any) -> None:
        self._fill(target)
        enumerator = self._open(spark, target)
        sizes = [increment.size_bytes for increment in increments_of(enumerator)]
        assert (enumerator.finished_bytes is None) == (enumerator.total_bytes is None)
        assert all((size is None) == (enumerator.total_bytes is None) for size in sizes)

    def test_a_source_is_pickled_with_the_stage(self, spark: SparkSession, target: Any) -> None:
        from pyspark import cloudpickle

        self._fill(target)
        source = self.source(target)
        sent: Source = cloudpickle.loads(cloudpickle.dumps(source))  # type: ignore[no-untyped-call]
        assert increments_of(self._opened(spark, sent)) == increments_of(self._opened(spark, source))

    # --- limits

    def test_an_increment_has_no_more_splits_than_its_limit(self, spark: SparkSession, target: Any) -> None:
        self._fill(target)
        counts = [len(increment.splits) for increment in increments_of(self._open(spark, target))]
        assert max(counts) <= self.splits_per_increment
        assert len(counts) > 1

    def test_other_limits_after_a_restore_lose_and_double_nothing(self, spark: SparkSession, target: Any) -> None:
        if not self.other_limits:
            pytest.skip("the source has no other limits")
        expected = self._fill(target)
        for limits in self.other_limits:
            enumerator = self._open(spark, target)
            read = self._read(enumerator, 1)
            restored = self._open(spark, target, stored(enumerator), **limits)
            assert sorted([*read, *self._read(restored)]) == expected
            enumerator = self._open(spark, target, **limits)
            read = self._read(enumerator, 1)
            assert sorted([*read, *self._read(self._open(spark, target, stored(enumerator)))]) == expected

    # --- state

    def test_a_restore_after_each_increment_reads_exactly_the_rest(self, spark: SparkSession, target: Any) -> None:
        expected, read, state = self._fill(target), [], None
        for _ in range(len(expected) + 1):
            enumerator = self._open(spark, target, state)
            found = self._read(enumerator, 1)
            if not found:
                break
            read += found
            state = stored(enumerator)
        assert sorted(read) == expected
        assert increments_of(self._open(spark, target, state)) == []

    def test_a_restored_attempt_plans_the_same_increments(self, spark: SparkSession, target: Any) -> None:
        self._fill(target)
        first = self._open(spark, target)
        planned = increments_of(first)
        for number, increment in enumerate([None, *planned]):
            if increment is not None:
                first.finish(increment)
            # Increments that were planned and not finished are lost with the attempt.
            assert increments_of(self._open(spark, target, stored(first))) == planned[number:]

    def test_the_state_is_the_same_in_every_attempt(self, spark: SparkSession, target: Any) -> None:
        self._fill(target)
        enumerator, other = self._open(spark, target), self._open(spark, target)
        assert enumerator.snapshot() == enumerator.snapshot() == other.snapshot()
        self._read(enumerator, 1)
        self._read(other, 1)
        assert enumerator.snapshot() == other.snapshot()
        state = stored(enumerator)
        assert self._open(spark, target, state).snapshot() == self._open(spark, target, state).snapshot()

    def test_the_state_passes_through_a_checkpoint(self, spark: SparkSession, target: Any) -> None:
        self._fill(target)
        enumerator = self._open(spark, target)
        for _ in range(2):
            assert stored(enumerator) == enumerator.snapshot()
            self._read(enumerator, 1)

    def test_a_state_is_not_changed_by_later_increments(self, spark: SparkSession, target: Any) -> None:
        self._fill(target)
        enumerator = self._open(spark, target)
        state = enumerator.snapshot()
        before = copy.deepcopy(state)
        self._finish(enumerator)
        assert state == before != enumerator.snapshot()

    def test_kills_between_any_two_steps_lose_and_double_nothing(self, spark: SparkSession, target: Any) -> None:
        expected = self._fill(target)
        read: dict[tuple[str, ...], list[int]] = {}
        killed_after, is_killed = 0, True
        while is_killed:
            stage = _Stage(lambda state: self._open(spark, target, state), self.keys_of, read)
            is_killed = stage.is_killed(killed_after)
            if is_killed:
                stage.run()
            assert sorted(stage.rows) == expected
            killed_after += 1
        assert killed_after > _STEPS

    def test_a_damaged_state_is_refused(self, spark: SparkSession, target: Any) -> None:
        self._fill(target)
        state = stored(self._open(spark, target))
        damages: list[dict[str, Any]] = [{name: state[name] for name in state if name != lost} for lost in state]
        damages += [{**state, name: "damaged"} for name in state]
        accepted = []
        for damaged in damages:
            try:
                self._open(spark, target, damaged)
            except CorruptStateError:
                continue
            accepted.append(damaged)
        assert accepted == []

    # --- runs

    def test_a_new_run_reads_only_what_was_added(self, spark: SparkSession, target: Any) -> None:
        self._fill(target)
        first = self._open(spark, target)
        count = self._finish(first)
        added = self._append(target)
        second = self._open(spark, target, stored(first), new_run=True)
        following = self._following(second)
        assert following.number == count + 1
        assert sorted([*self.keys_of(second, following), *self._read(second)]) == added
        second.finish(following)
        more = self._append(target)
        assert sorted(self._read(self._open(spark, target, stored(second), new_run=True))) == more

    def test_a_new_run_without_new_input_has_no_increment(self, spark: SparkSession, target: Any) -> None:
        self._fill(target)
        enumerator = self._open(spark, target)
        self._finish(enumerator)
        for _ in range(2):
            enumerator = self._open(spark, target, stored(enumerator), new_run=True)
            assert increments_of(enumerator) == []
        added = self._append(target)
        assert sorted(self._read(self._open(spark, target, stored(enumerator), new_run=True))) == added

    def test_a_new_run_also_reads_what_the_run_before_had_left(self, spark: SparkSession, target: Any) -> None:
        expected = self._fill(target)
        first = self._open(spark, target)
        read = self._read(first, 1)
        added = self._append(target)
        second = self._open(spark, target, stored(first), new_run=True)
        read += self._read(second, 1)
        # A retry of the second run.
        again = self._open(spark, target, stored(second))
        assert sorted([*read, *self._read(again)]) == [*expected, *added]

    def test_input_that_appears_within_a_run_belongs_to_the_next_one(self, spark: SparkSession, target: Any) -> None:
        expected = self._fill(target)
        first = self._open(spark, target)
        added = self._append(target)
        read = self._read(first, 1)
        if self.appends_are_changes:
            with pytest.raises(SourceChangedError):
                self._open(spark, target, stored(first))
        again = self._open(spark, target, stored(first), **self._ignoring_appends())
        assert sorted([*read, *self._read(again)]) == expected
        assert sorted(self._read(self._open(spark, target, stored(again), new_run=True))) == added

    # --- changes

    @pytest.mark.parametrize("new_run", [False, True], ids=["retry", "new-run"])
    @pytest.mark.parametrize("policy", POLICIES)
    def test_a_change_of_rows_that_were_read_follows_the_policy(
        self, spark: SparkSession, target: Any, policy: str, new_run: bool
    ) -> None:
        state, read = self._partly_read(spark, target, policy)
        if self.change is None or not (new_run or self.notices_changes_within_run):
            pytest.skip("the source does not notice such changes")
        self.change(target)
        if policy != "ignore":
            with pytest.raises(_error_of(policy)):
                self._open(spark, target, state, new_run=new_run, on_change=policy)
            return
        passed = self._open(spark, target, state, new_run=new_run, on_change=policy)
        found = self._read(passed)
        assert len(found) == len(set(found))
        assert not set(read) & set(found)
        # A change that was ignored is not noticed again.
        self._open(spark, target, stored(passed), on_change="fail")

    def test_input_is_read_after_a_change_that_was_ignored(self, spark: SparkSession, target: Any) -> None:
        if self.change is None:
            pytest.skip("the source does not notice changes")
        self._require_policy("ignore")
        self._fill(target)
        first = self._open(spark, target, on_change="ignore")
        read = self._read(first)
        self.change(target)
        added = self._append(target)
        found = self._read(self._open(spark, target, stored(first), new_run=True, on_change="ignore"))
        assert set(added) <= set(found)
        assert not set(read) & set(found)

    @pytest.mark.parametrize("policy", POLICIES)
    def test_input_that_vanishes_before_it_is_read_is_missed(
        self, spark: SparkSession, target: Any, policy: str
    ) -> None:
        state, _ = self._partly_read(spark, target, policy)
        if self.lose is None:
            pytest.skip("the source does not notice that input vanishes")
        self.lose(target)
        with pytest.raises(_error_of(policy)):
            self._read(self._open(spark, target, state, on_change=policy))

    # --- steps in parts

    def test_parts_of_any_size_have_each_row_once(self, spark: SparkSession, target: Any) -> None:
        expected = self._fill(target)
        for sizes in ([1], [_MANY], [1, _MANY, 1]):
            enumerator = self._in_parts(spark, target)
            planned = []
            for size in [*sizes, *[sizes[-1]] * len(expected)]:
                enumerator.size_increments(size, 1)
                planned += [increment for increment in [enumerator.next_increment()] if increment is not None]
            assert sorted(key for each in planned for key in self.keys_of(enumerator, each)) == expected
            assert max(len(each.splits) for each in planned) <= self.splits_per_increment

    def test_parts_may_be_finished_in_any_order(self, spark: SparkSession, target: Any) -> None:
        expected = self._fill(target)
        enumerator = self._in_parts(spark, target)
        listed = enumerator.snapshot()
        enumerator.size_increments(1, 1)
        planned = increments_of(enumerator)
        keys = {each.number: self.keys_of(enumerator, each) for each in planned}
        for finished in (planned[-1:], planned[::2], planned[::-1]):
            pieces = [decode_state(encode_state(enumerator.encode(each))) for each in finished]
            state = decode_state(encode_state(state_after(listed, pieces)))
            rest = self._read(self._open(spark, target, state))
            assert sorted([*rest, *(key for each in finished for key in keys[each.number])]) == expected
            assert [moved_pieces(each, listed, state) for each in pieces] == pieces

    def test_the_share_of_finished_parts_grows_from_zero_to_one(self, spark: SparkSession, target: Any) -> None:
        self._fill(target)
        enumerator = self._in_parts(spark, target)
        shares = [enumerator.finished_share]
        for increment in increments_of(enumerator):
            enumerator.finish(increment)
            shares.append(enumerator.finished_share)
        assert shares == sorted(shares)
        assert (shares[0], shares[-1]) == (0.0, 1.0)

    def test_a_part_is_described_by_the_names_of_its_items(self, spark: SparkSession, target: Any) -> None:
        self._fill(target)
        enumerator = self._in_parts(spark, target)
        texts = [text for increment in increments_of(enumerator) for text in enumerator.describe(increment)]
        assert len(texts) >= _APPENDS
        self._require_concealed(*texts)

    # --- secrets

    def test_secrets_are_in_no_text_and_in_no_state(self, spark: SparkSession, target: Any) -> None:
        if not self.secrets:
            pytest.skip("the source has no secrets")
        self._fill(target)
        source = self.source(target)
        enumerator = self._opened(spark, source)
        frame = enumerator.load(self._following(enumerator))
        state = json.dumps(encode_state(enumerator.snapshot()))
        self._require_concealed(repr(source), repr(enumerator), repr(enumerator.snapshot()), state)
        plan = getattr(frame, "_jdf", None)
        self._require_concealed(repr(frame), "" if plan is None else plan.queryExecution().toString())

    # --- helpers of the suite

    def _fill(self, target: Any) -> list[int]:
        return [key for _ in range(_APPENDS) for key in self._append(target)]

    def _append(self, target: Any) -> list[int]:
        # A new instance of the class runs each test.
        first = getattr(self, "_next_key", 0)
        self._next_key = first + _KEYS_PER_APPEND
        keys = list(range(first, self._next_key))
        self.append(target, keys)
        return keys

    def _open(
        self, spark: SparkSession, target: Any, restored: Any = None, *, new_run: bool = False, **settings: Any
    ) -> SplitEnumerator:
        return self._opened(spark, self.source(target, **settings), restored, new_run=new_run)

    def _opened(
        self, spark: SparkSession, source: Source, restored: Any = None, *, new_run: bool = False
    ) -> SplitEnumerator:
        return source.open(spark, restored, new_run=new_run, storage_options=self.storage_options)

    def _in_parts(self, spark: SparkSession, target: Any) -> ItemEnumerator:
        if not self.works_in_parts:
            pytest.skip("the source is no input of steps in parts")
        enumerator = self._open(spark, target)
        assert isinstance(enumerator, ItemEnumerator)
        return enumerator

    def _following(self, enumerator: SplitEnumerator) -> Increment:
        increment = enumerator.next_increment()
        assert increment is not None
        return increment

    def _read(self, enumerator: SplitEnumerator, count: int | None = None) -> list[int]:
        found: list[int] = []
        while count is None or count > 0:
            increment = enumerator.next_increment()
            if increment is None:
                break
            found += self.keys_of(enumerator, increment)
            enumerator.require_unchanged(increment)
            enumerator.finish(increment)
            count = None if count is None else count - 1
        return found

    def _finish(self, enumerator: SplitEnumerator) -> int:
        """Finish all increments without reading them; return their number."""
        planned = increments_of(enumerator)
        for increment in planned:
            enumerator.finish(increment)
        return len(planned)

    def _partly_read(self, spark: SparkSession, target: Any, policy: str) -> tuple[Any, list[int]]:
        """Return the state after the rows of the first append were read, and the keys that were read."""
        self._require_policy(policy)
        self._fill(target)
        enumerator, read = self._open(spark, target, on_change=policy), list[int]()
        while len(read) < _KEYS_PER_APPEND:
            read += self._read(enumerator, 1)
        return stored(enumerator), read

    def _require_policy(self, policy: str) -> None:
        if policy not in self.policies:
            pytest.skip(f"the source has no on_change={policy!r}")

    def _ignoring_appends(self) -> dict[str, Any]:
        return {"on_change": "ignore"} if self.appends_are_changes else {}

    def _require_concealed(self, *texts: str) -> None:
        assert [text for text in texts for secret in self.secrets if secret in text] == []


def _error_of(policy: str) -> type[Exception]:
    return SourceRestartRequiredError if policy == "restart" else SourceChangedError


class _KilledError(Exception):
    """The process of an attempt has ended."""


@dataclass
class _Stage:
    """A stage as a source sees it; rows count only together with the state that was saved after them."""

    open: Callable[[Any], SplitEnumerator]
    keys_of: Callable[[SplitEnumerator, Increment], list[int]]
    read: dict[tuple[str, ...], list[int]]
    """Keys of increments that were read before, by the ids of their splits."""
    rows: list[int] = field(default_factory=list)
    saved: Any = None
    steps_left: int | None = None

    def is_killed(self, after: int) -> bool:
        """Run an attempt that is killed after a number of steps; return whether it has that many."""
        self.steps_left = after
        try:
            self.run()
        except _KilledError:
            self.steps_left = None
            return True
        return False

    def run(self) -> None:
        """Run an attempt that continues from the saved state; like a stage, it plans one increment ahead."""
        enumerator = self.open(self.saved)
        current = enumerator.next_increment()
        while current is not None:
            self._step()
            following = enumerator.next_increment()
            self._step()
            rows = self._load(enumerator, current)
            self._step()
            enumerator.require_unchanged(current)
            enumerator.finish(current)
            self._step()
            self.saved, self.rows = stored(enumerator), [*self.rows, *rows]
            self._step()
            current = following

    def _load(self, enumerator: SplitEnumerator, increment: Increment) -> list[int]:
        names = tuple(split.split_id for split in increment.splits)
        if names not in self.read:
            self.read[names] = self.keys_of(enumerator, increment)
        return self.read[names]

    def _step(self) -> None:
        if self.steps_left is not None:
            if self.steps_left == 0:
                raise _KilledError
            self.steps_left -= 1
