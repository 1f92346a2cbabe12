"""The contract of sources over a source of a user's own, and over ones that break it; without Spark."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.spark.connectors.source import Increment, Split
from airflow_provider_statecheck.testing.source_contract import SourceContract


class FolderEnumerator:
    """Reads the files of a folder, two at a time."""

    def __init__(self, folder: Path, names: Sequence[str], done: int, number: int) -> None:
        self.folder, self.names, self.done, self.number = folder, list(names), done, number
        self.total_bytes = self.finished_bytes = None
        self.batches = iter([self.names[i : i + 2] for i in range(done, len(self.names), 2)])
        self.numbers = itertools.count(number + 1)

    @property
    def total_splits(self) -> int:
        return len(self.names)

    @property
    def finished_splits(self) -> int:
        return self.done

    def next_increment(self) -> Increment | None:
        batch = next(self.batches, None)
        return None if batch is None else Increment(next(self.numbers), tuple(Split(name) for name in batch))

    def load(self, increment: Increment) -> Any:
        return [int(x) for split in increment.splits for x in (self.folder / split.split_id).read_text().split()]

    def require_unchanged(self, increment: Increment) -> None:
        """A file never changes."""

    def finish(self, increment: Increment) -> None:
        self.done += len(increment.splits)
        self.number = increment.number

    def snapshot(self) -> dict[str, Any]:
        return {"names": list(self.names), "done": self.done, "number": self.number}


class FolderSource:
    """The files of a folder; a new run reads those that appeared."""

    enumerator: type[FolderEnumerator] = FolderEnumerator

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(
        self,
        spark: Any,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FolderEnumerator:
        now = sorted(path.name for path in self.folder.iterdir())
        if restored is None:
            return self.enumerator(self.folder, now, 0, 0)
        try:
            names, done, number = list(restored["names"]), int(restored["done"]), int(restored["number"])
        except (KeyError, ValueError) as error:
            raise CorruptStateError("Expected the state of a folder.") from error
        if not isinstance(restored["names"], list):
            raise CorruptStateError("Expected a list of names.")
        added = [name for name in now if name not in names] if new_run else []
        return self.enumerator(self.folder, [*names, *added], done, number)


class TestFolders(SourceContract):
    splits_per_increment = 2
    kind: type[FolderSource] = FolderSource

    @pytest.fixture
    def spark(self) -> None:
        """Nothing here needs a session."""

    def source(self, target: Path, **settings: Any) -> FolderSource:
        return self.kind(target)

    def append(self, target: Path, keys: Sequence[int]) -> None:
        for key in keys:
            (target / f"{key:03}").write_text(str(key))

    def keys_of(self, enumerator: Any, increment: Increment) -> list[int]:
        found: list[int] = enumerator.load(increment)
        return found


class DoublesAtRestore(FolderEnumerator):
    def snapshot(self) -> dict[str, Any]:
        return {**super().snapshot(), "done": max(0, self.done - 1)}


class LosesWhatIsPlanned(FolderEnumerator):
    def next_increment(self) -> Increment | None:
        increment = super().next_increment()
        if increment is not None:
            super().finish(increment)
        return increment

    def finish(self, increment: Increment) -> None:
        """Too late."""


class ListsInAnyOrder(FolderEnumerator):
    orders = itertools.cycle([1, -1])

    def __init__(self, folder: Path, names: Sequence[str], done: int, number: int) -> None:
        super().__init__(folder, names if done else list(names)[:: next(self.orders)], done, number)


class SharesItsState(FolderEnumerator):
    def __init__(self, folder: Path, names: Sequence[str], done: int, number: int) -> None:
        super().__init__(folder, names, done, number)
        self.state: dict[str, Any] = {}

    def snapshot(self) -> dict[str, Any]:
        self.state.update(super().snapshot())
        return self.state

    def finish(self, increment: Increment) -> None:
        super().finish(increment)
        self.snapshot()


class CountsFromOne(FolderEnumerator):
    def snapshot(self) -> dict[str, Any]:
        return {**super().snapshot(), "number": 0}


class ReadsOnce(FolderEnumerator):
    def load(self, increment: Increment) -> Any:
        found = super().load(increment)
        for split in increment.splits:
            (self.folder / split.split_id).write_text("")
        return found


def failures_of(enumerator: type[FolderEnumerator], folder: Path) -> set[str]:
    """Return the tests of the contract that a source with this enumerator fails."""
    contract = type("Contract", (TestFolders,), {"kind": type("Kind", (FolderSource,), {"enumerator": enumerator})})
    failed = set()
    for number, name in enumerate(name for name in dir(SourceContract) if name.startswith("test_")):
        test: Callable[..., Any] = getattr(contract(), name)
        target = folder / str(number)
        target.mkdir()
        if list(inspect.signature(test).parameters) != ["spark", "target"]:
            continue
        try:
            test(None, target)
        except pytest.skip.Exception:
            continue
        except Exception:
            failed.add(name.removeprefix("test_"))
    return failed


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (DoublesAtRestore, "a_restore_after_each_increment_reads_exactly_the_rest"),
        (LosesWhatIsPlanned, "kills_between_any_two_steps_lose_and_double_nothing"),
        (ListsInAnyOrder, "the_state_is_the_same_in_every_attempt"),
        (SharesItsState, "a_state_is_not_changed_by_later_increments"),
        (CountsFromOne, "a_restored_attempt_plans_the_same_increments"),
        (ReadsOnce, "an_increment_loaded_twice_has_the_same_rows"),
    ],
)
def test_a_source_that_breaks_the_contract_fails_its_test(tmp_path, broken, test):
    assert failures_of(FolderEnumerator, tmp_path) == set()
    folder = tmp_path / "broken"
    folder.mkdir()
    assert test in failures_of(broken, folder)
