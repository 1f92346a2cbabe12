"""
The ledger of one lineage: which attempts had the target, and what each checkpoint put there.

::

    heads/<epoch>.json                          an attempt took the target over; nothing of a lower epoch counts afterwards
    intents/<generation>-<checkpoint>.json      its files are being published
    commits/<generation>-<checkpoint>.json      its files are all there
    retracted/<generation>-<checkpoint>.json    its files are gone, or are being deleted

A record goes from the first to the last in this order and never back. Each step is a file of its own, so that an attempt
that was fenced and writes late can make nothing undone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CorruptStateError, StaleAttemptError
from airflow_provider_statecheck.spark.sinks.line import History, Start
from airflow_provider_statecheck.spark.sinks.names import lineage_directory
from airflow_provider_statecheck.spark.sinks.record import CommitRecord
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles

PARALLEL_CALLS = 16
"""Calls that mostly wait for an object store."""
HEADS, INTENTS, COMMITS, RETRACTED = "heads", "intents", "commits", "retracted"

Item = TypeVar("Item")
Result = TypeVar("Result")


class Ledger:
    """
    What is known of the ledger, and each step of it.

    :param files: The target.
    """

    def __init__(self, files: TargetFiles) -> None:
        self._files = files
        self.starts: dict[int, Start] = {}
        self.intents: dict[str, CommitRecord] = {}
        self.commits: dict[str, CommitRecord] = {}
        self.retracted: dict[str, CommitRecord] = {}
        self.half_retracted: list[CommitRecord] = []
        """Those of which files may be left."""
        self._finished_intents: list[str] = []

    @classmethod
    def load(cls, files: TargetFiles) -> Ledger:
        """Read the ledger; it is empty where there was none."""
        ledger = cls(files)
        names = files.list_files(lineage_directory(files.lineage))
        ledger.starts = {int(key): _decode_start(content) for key, content in ledger._contents(names, HEADS)}
        retracted, commits, intents = (ledger._records(names, step) for step in (RETRACTED, COMMITS, INTENTS))
        ledger.retracted = retracted
        ledger.half_retracted = [r for key, r in retracted.items() if key in commits or key in intents]
        ledger.commits = {key: r for key, r in commits.items() if key not in retracted}
        ledger.intents = {key: r for key, r in intents.items() if key not in retracted and key not in commits}
        ledger._finished_intents = [key for key in intents if key in commits]
        return ledger

    @property
    def active(self) -> list[CommitRecord]:
        """Return all records that were not retracted, in their order."""
        return sorted([*self.intents.values(), *self.commits.values()], key=lambda record: record.order)

    @property
    def has_output(self) -> bool:
        """Tell whether files of the lineage are published, or may be."""
        return any(record.files for record in self.active)

    @property
    def newest(self) -> CommitRecord | None:
        """Return the record that tells which others are in force."""
        return max(self.commits.values(), key=lambda record: record.order, default=None)

    @property
    def latest_schema(self) -> CommitRecord | None:
        """Return the record that tells what the output looks like, retracted or not."""
        known = [r for r in (*self.active, *self.retracted.values()) if r.schema]
        return max(known, key=lambda record: record.order, default=None)

    def history(self, *more: CommitRecord) -> History:
        """
        Return which checkpoints go on from which.

        :param more: Records that are not in the ledger yet.
        """
        taken: dict[int, int] = {}
        for record in (*self.active, *self.retracted.values(), *more):
            if not record.is_end:
                taken[record.checkpoint_id] = min(record.epoch, taken.get(record.checkpoint_id, record.epoch))
        return History(self.starts, taken)

    def require_newest(self, epoch: int) -> None:
        """
        Refuse to go on after a newer attempt took the target over.

        :raises StaleAttemptError: if one did.
        """
        heads = self._files.list_files(f"{lineage_directory(self._files.lineage)}/{HEADS}")
        newest = max((int(name.removesuffix(".json")) for name in heads), default=epoch)
        if newest > epoch:
            raise StaleAttemptError(
                f"Attempt {epoch} no longer owns its output in {self._files.target}: attempt {newest} took it over; stop "
                "this one.",
                epoch=newest,
            )

    def begin_attempt(self, epoch: int, start: Start) -> None:
        """Note that an attempt takes the target over."""
        document = {"generation": start.generation, "restored": start.restored, "taken_by": start.taken_by}
        self._files.write(self._path(HEADS, str(epoch)), json.dumps(document, sort_keys=True).encode())
        self.starts[epoch] = start

    def intend(self, record: CommitRecord) -> None:
        """Note what is about to be published."""
        self._files.write(self._path(INTENTS, record.key), record.encode())
        self.intents[record.key] = record

    def complete(self, record: CommitRecord) -> None:
        """Note that everything of a record is published: this is the moment at which it is committed."""
        self._files.write(self._path(COMMITS, record.key), record.encode())
        self.commits[record.key] = record
        self.intents.pop(record.key, None)
        self._files.delete(self._path(INTENTS, record.key))

    def retract(self, record: CommitRecord) -> None:
        """Delete the files of a record, and note it before: what is restored from it is no longer there."""
        self._files.write(self._path(RETRACTED, record.key), record.encode())
        self.retracted[record.key] = record
        self.commits.pop(record.key, None)
        self.intents.pop(record.key, None)
        in_parallel(self._files.delete, [file.name for file in record.files], is_local=self._files.is_local)
        self._files.delete(self._path(COMMITS, record.key))
        self._files.delete(self._path(INTENTS, record.key))

    def drop_finished_intents(self) -> None:
        """Delete the notes of what was to be published of those records that are complete."""
        for key in self._finished_intents:
            self._files.delete(self._path(INTENTS, key))
        self._finished_intents = []

    def _records(self, names: Iterable[str], step: str) -> dict[str, CommitRecord]:
        return {
            key: CommitRecord.decode(content, f"{self._files.target}/{self._path(step, key)}")
            for key, content in self._contents(names, step)
        }

    def _contents(self, names: Iterable[str], step: str) -> Iterator[tuple[str, bytes]]:
        prefix = f"{step}/"
        keys = sorted(n.removeprefix(prefix).removesuffix(".json") for n in names if n.startswith(prefix))
        contents = in_parallel(lambda key: self._read(step, key), keys, is_local=self._files.is_local)
        return ((key, content) for key, content in zip(keys, contents, strict=True) if content is not None)

    def _read(self, step: str, key: str) -> bytes | None:
        try:
            return self._files.read(self._path(step, key))
        except CheckpointNotFoundError:
            return None  # it went to the next step in the meantime

    def _path(self, step: str, key: str) -> str:
        return f"{lineage_directory(self._files.lineage)}/{step}/{key}.json"


def in_parallel(call: Callable[[Item], Result], items: Iterable[Item], *, is_local: bool) -> list[Result]:
    """Make a call for each item, many at once where each waits for a server; what fails first is raised at the end."""
    if is_local:
        return [call(item) for item in items]
    with ThreadPoolExecutor(PARALLEL_CALLS, thread_name_prefix="statecheck-sink") as pool:
        return list(pool.map(call, items))


def _decode_start(content: bytes) -> Start:
    try:
        document = json.loads(content)
        restored, taken_by = document["restored"], document.get("taken_by")
        return Start(
            int(document["generation"]),
            None if restored is None else int(restored),
            None if taken_by is None else int(taken_by),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptStateError(
            f"Expected the head of a sink's ledger, found {content[:60]!r}; put the file back from a backup."
        ) from error
