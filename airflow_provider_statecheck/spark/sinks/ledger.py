"""
Ledger of a sink: the commits of its checkpoints and the history of its attempts.

::

    heads/<epoch>.json                          an attempt took ownership; lower epochs are fenced
    intents/<generation>-<checkpoint>.json      the files of the checkpoint are being published
    commits/<generation>-<checkpoint>.json      the files of the checkpoint are published
    retracted/<generation>-<checkpoint>.json    the files of the checkpoint are deleted, or are being deleted

A record only moves forward through the states intent, commit and retracted. Each state is a separate file, hence a late
write of a fenced attempt cannot undo a later state.

An attempt starts from a checkpoint of an earlier attempt, or fresh. If it restores an older checkpoint, the newer
checkpoints of earlier attempts form an abandoned branch, and their output is retracted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    EnvironmentNotReadyError,
    IncompatibleCheckpointError,
    StaleAttemptError,
)
from airflow_provider_statecheck.spark.sinks.sink import SinkContext
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles, lineage_directory, lineage_of

FORMAT_VERSION = 1
ALL_CHECKPOINTS = sys.maxsize
"""Checkpoint id above all ids of an attempt."""
PARALLEL_CALLS = 16
"""Number of concurrent calls to an object store."""
HEADS, INTENTS, COMMITS, RETRACTED = "heads", "intents", "commits", "retracted"
Item = TypeVar("Item")
Result = TypeVar("Result")


class Ledger:
    """
    State of the ledger of one lineage, and its transitions.

    :param files: Files below the target.
    """

    def __init__(self, files: TargetFiles) -> None:
        self._files = files
        self.starts: dict[int, Start] = {}
        self.intents: dict[str, CommitRecord] = {}
        self.commits: dict[str, CommitRecord] = {}
        self.retracted: dict[str, CommitRecord] = {}
        self.half_retracted: list[CommitRecord] = []
        """Records whose files may not all be deleted yet."""
        self._finished_intents: list[str] = []

    @classmethod
    def load(cls, files: TargetFiles) -> Ledger:
        """Return the ledger of the target; it is empty if there is none."""
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
        """Return all records that are not retracted, in order."""
        return sorted([*self.intents.values(), *self.commits.values()], key=lambda record: record.order)

    @property
    def has_output(self) -> bool:
        """Return whether files of the lineage are or may be published."""
        return any(record.files for record in self.active)

    @property
    def newest(self) -> CommitRecord | None:
        """Return the newest committed record; its ancestry determines the records in force."""
        return max(self.commits.values(), key=lambda record: record.order, default=None)

    @property
    def latest_schema(self) -> CommitRecord | None:
        """Return the newest record with a schema, retracted or not."""
        known = [r for r in (*self.active, *self.retracted.values()) if r.schema]
        return max(known, key=lambda record: record.order, default=None)

    def history(self, *more: CommitRecord) -> History:
        """
        Return the history of attempts and checkpoints.

        :param more: Records that are not in the ledger yet.
        """
        taken: dict[int, int] = {}
        for record in (*self.active, *self.retracted.values(), *more):
            if not record.is_end:
                taken[record.checkpoint_id] = min(record.epoch, taken.get(record.checkpoint_id, record.epoch))
        return History(self.starts, taken)

    def require_newest(self, epoch: int) -> None:
        """
        Require that no newer attempt has taken ownership of the target.

        :raises StaleAttemptError: if a newer attempt owns the target.
        """
        heads = self._files.list_files(f"{lineage_directory(self._files.lineage)}/{HEADS}")
        newest = max((int(name.removesuffix(".json")) for name in heads), default=epoch)
        if newest > epoch:
            raise StaleAttemptError(
                f"Attempt {epoch} no longer owns its output in {self._files.target}: attempt {newest} took it over; stop "
                f"attempt {epoch}.",
                epoch=newest,
            )

    def begin_attempt(self, epoch: int, start: Start) -> None:
        """Record that an attempt takes ownership of the target."""
        document = {"generation": start.generation, "restored": start.restored, "taken_by": start.taken_by}
        self._files.write(self._path(HEADS, str(epoch)), json.dumps(document, sort_keys=True).encode())
        self.starts[epoch] = start

    def intend(self, record: CommitRecord) -> None:
        """Record the files that are about to be published."""
        self._files.write(self._path(INTENTS, record.key), record.encode())
        self.intents[record.key] = record

    def complete(self, record: CommitRecord) -> None:
        """Record that all files of a record are published; this commits the record."""
        self._files.write(self._path(COMMITS, record.key), record.encode())
        self.commits[record.key] = record
        self.intents.pop(record.key, None)
        self._files.delete(self._path(INTENTS, record.key))

    def retract(self, record: CommitRecord) -> None:
        """Record the retraction, then delete the files of a record."""
        self._files.write(self._path(RETRACTED, record.key), record.encode())
        self.retracted[record.key] = record
        self.commits.pop(record.key, None)
        self.intents.pop(record.key, None)
        in_parallel(self._files.delete, [file.name for file in record.files], is_local=self._files.is_local)
        self._files.delete(self._path(COMMITS, record.key))
        self._files.delete(self._path(INTENTS, record.key))

    def drop_finished_intents(self) -> None:
        """Delete the intents of committed records."""
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
            return None  # the record has moved to its next state

    def _path(self, step: str, key: str) -> str:
        return f"{lineage_directory(self._files.lineage)}/{step}/{key}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """Output that one checkpoint adds to the target; equal commits encode to equal bytes."""

    job_name: str
    uid: str
    generation: int
    checkpoint_id: int
    epoch: int
    """Attempt that took the checkpoint; a later attempt may commit it."""
    ancestry: Ancestry
    """Ancestry of the checkpoint; the record replaces all older output outside it."""
    schema: str
    partition_by: tuple[str, ...]
    files: tuple[PublishedFile, ...]
    is_end: bool = False
    """Whether the record only marks the end of an attempt that succeeded without a checkpoint."""

    @property
    def key(self) -> str:
        """Return the name of the record in the ledger."""
        end = f"-end-{self.epoch}" if self.is_end else ""
        return f"{self.generation}-{self.checkpoint_id}{end}"

    @property
    def order(self) -> tuple[int, int]:
        """Return the sort key of records: by epoch, then by checkpoint."""
        return self.epoch, self.checkpoint_id

    @property
    def staged(self) -> frozenset[str]:
        """Return the names of the files in the staging directory."""
        return frozenset(file.staged for file in self.files)

    def replaces(self, older: CommitRecord) -> bool:
        """Return whether committing this record supersedes an older one."""
        return older.order < self.order and not self.ancestry.holds(older.epoch, older.checkpoint_id)

    def encode(self) -> bytes:
        """Return the record as JSON."""
        document = {
            "format_version": FORMAT_VERSION,
            "job": self.job_name,
            "uid": self.uid,
            "generation": self.generation,
            "checkpoint": self.checkpoint_id,
            "epoch": self.epoch,
            "line": self.ancestry.segments,
            "is_end": self.is_end,
            "columns": _readable(self.schema),
            "schema": self.schema,
            "partition_by": self.partition_by,
            "files": [[f.staged, f.name, f.size_bytes, f.rows, f.footer_sha256] for f in self.files],
        }
        return json.dumps(document, sort_keys=True, indent=1).encode()

    @classmethod
    def decode(cls, content: bytes, shown: str) -> CommitRecord:
        """
        Return the record that :meth:`encode` encoded.

        :param shown: Name of the file for error messages.
        :raises CorruptStateError: if the file is damaged.
        :raises IncompatibleCheckpointError: if a newer version of this package wrote the file.
        """
        try:
            document = json.loads(content)
            version = int(document["format_version"])
            record = _from_document(document) if version == FORMAT_VERSION else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStateError(
                f"Expected a record of a sink in {shown}, found {content[:60]!r}; restore the file from a backup, or move "
                "the directory of the lineage away together with its files."
            ) from error
        if record is None:
            raise IncompatibleCheckpointError(
                f"Expected a record of format {FORMAT_VERSION} in {shown}, found format {version}; use the version of "
                "airflow-provider-statecheck that wrote it, or a newer one.",
                format_version=version,
            )
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A data file with its staged and its published name."""

    staged: str
    name: str
    """Path relative to the target."""
    size_bytes: int
    rows: int
    footer_sha256: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start of an attempt."""

    generation: int
    restored: int | None
    """Restored checkpoint, ``None`` for a fresh start."""
    taken_by: int | None = None
    """Epoch of the attempt that took the restored checkpoint, ``None`` if unknown."""


@dataclass(frozen=True, slots=True)
class Ancestry:
    """A checkpoint and all checkpoints that it builds on."""

    segments: tuple[tuple[int, int], ...]
    """Pairs of an epoch and the last checkpoint of that attempt in the ancestry, newest first."""

    def holds(self, epoch: int, checkpoint_id: int) -> bool:
        """Return whether the ancestry contains a checkpoint that an attempt took."""
        return any(epoch == taker and checkpoint_id <= last for taker, last in self.segments)


@dataclass(frozen=True, slots=True)
class History:
    """Starts of the attempts, and the attempt that took each checkpoint."""

    starts: Mapping[int, Start]
    """Starts by epoch."""
    taken: Mapping[int, int]
    """Epochs by checkpoint, for the checkpoints that the sink has seen."""

    def ancestry_of(self, epoch: int, checkpoint_id: int = ALL_CHECKPOINTS) -> Ancestry:
        """
        Return the ancestry of a checkpoint.

        :param epoch: Attempt that took the checkpoint.
        :param checkpoint_id: Id of the checkpoint; by default all checkpoints that the attempt will take.
        :raises CorruptStateError: if the ancestry is unknown.
        """
        segments = [(epoch, checkpoint_id)]
        start = self.starts.get(epoch)
        while start is not None and start.restored is not None:
            self._require_known_taker(start)
            before = start.taken_by or self._taker(start.restored, segments[-1][0])
            if before is None or before >= segments[-1][0]:
                break
            segments.append((before, start.restored))
            start = self.starts.get(before)
        return Ancestry(tuple(segments))

    def _require_known_taker(self, start: Start) -> None:
        # Without this check, the output of older attempts would look like an abandoned branch and be retracted.
        taker = start.taken_by
        if taker is None or taker in self.starts:
            return
        older = [n for n, each in self.starts.items() if n < taker and each.generation == start.generation]
        if older:
            raise CorruptStateError(
                f"Expected attempt {taker}, which took the restored checkpoint {start.restored}, to have written to this "
                f"destination, as attempt {max(older)} did, found no record of it; the sink was changed in between and changed "
                f"back, and output is missing. Restore a checkpoint of attempt {max(older)}, choose another destination, or "
                "start over.",
                checkpoint_id=start.restored,
            )

    def _taker(self, checkpoint_id: int, before: int) -> int | None:
        known = self.taken.get(checkpoint_id)
        if known is not None:
            return known
        newest = max(self._candidates(checkpoint_id, before), default=None)
        if newest is not None:
            self._require_unambiguous(newest, checkpoint_id)
        return newest

    def _candidates(self, checkpoint_id: int, before: int) -> list[int]:
        generation = self.starts[before].generation
        return [
            epoch
            for epoch, start in self.starts.items()
            if epoch < before and start.generation == generation and (start.restored or 0) < checkpoint_id
        ]

    def _require_unambiguous(self, epoch: int, checkpoint_id: int) -> None:
        began = self.starts[epoch].restored or 0
        doubtful = _between(self.taken, epoch, began, checkpoint_id)
        if doubtful:
            raise CorruptStateError(
                f"Expected committables with checkpoint {checkpoint_id}, found none, and it is not known whether it follows "
                f"checkpoint {doubtful[0]}, which has output; restore from checkpoint {doubtful[-1]}, or start over.",
                checkpoint_id=checkpoint_id,
            )


def in_parallel(call: Callable[[Item], Result], items: Iterable[Item], *, is_local: bool) -> list[Result]:
    """Call a function for each item, concurrently unless the files are local; raises the first error at the end."""
    if is_local:
        return [call(item) for item in items]
    with ThreadPoolExecutor(PARALLEL_CALLS, thread_name_prefix="statecheck-sink") as pool:
        return list(pool.map(call, items))


def refuse_output_of_removed_stages(context: SinkContext, target: str, has_output: Callable[[str], bool]) -> None:
    """
    Refuse a target with output of a removed stage of the same job.

    Call this only for a sink that never wrote to the target. A sink with output there wrote it alongside the removed
    stage.

    :param target: Name of the target for error messages, without credentials.
    :param has_output: Function that returns whether the target has committed output of a lineage.
    :raises EnvironmentNotReadyError: if the target has output of a removed stage.
    """
    for uid in context.gone_uids:
        if has_output(lineage_of(context.job_id, uid)):
            stage, mine = (each.rpartition("/")[0] for each in (uid, context.uid))
            raise EnvironmentNotReadyError(
                f"Expected no output in {target} of a stage that was removed from job {context.job_name!r}, found output of "
                f"{stage!r}, which {mine!r} would duplicate. If {mine!r} is the new name of {stage!r}, set "
                f"renamed_uids={{{stage!r}: {mine!r}}} or uid={stage!r}; otherwise choose another target, or set another job= "
                "for the stage."
            )


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
            f"Expected the head of a sink's ledger, found {content[:60]!r}; restore the file from a backup."
        ) from error


def _from_document(document: Mapping[str, Any]) -> CommitRecord:
    return CommitRecord(
        job_name=str(document["job"]),
        uid=str(document["uid"]),
        generation=int(document["generation"]),
        checkpoint_id=int(document["checkpoint"]),
        epoch=int(document["epoch"]),
        ancestry=Ancestry(tuple((int(epoch), int(last)) for epoch, last in document["line"])),
        is_end=bool(document["is_end"]),
        schema=str(document["schema"]),
        partition_by=tuple(str(column) for column in document["partition_by"]),
        files=tuple(
            PublishedFile(
                staged=str(staged), name=str(name), size_bytes=int(size), rows=int(rows), footer_sha256=str(digest)
            )
            for staged, name, size, rows, digest in document["files"]
        ),
    )


def _readable(schema: str) -> list[str]:
    from airflow_provider_statecheck.spark.sinks.sink import decode_schema

    return [str(field) for field in decode_schema(schema)] if schema else []


def _between(taken: Mapping[int, int], epoch: int, after: int, until: int) -> list[int]:
    found: Iterable[int] = (n for n, taker in taken.items() if taker < epoch and after < n <= until)
    return sorted(found)
