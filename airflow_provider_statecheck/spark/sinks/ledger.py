"""
Ledger of a sink: what each checkpoint committed, and which commits an attempt inherits.

::

    heads/<epoch>.json                          an attempt took the target over; nothing of a lower epoch counts afterwards
    intents/<generation>-<checkpoint>.json      its files are being published
    commits/<generation>-<checkpoint>.json      its files are all there
    retracted/<generation>-<checkpoint>.json    its files are gone, or are being deleted

A record goes from the first to the last in this order and never back. Each step is a file of its own, so that an attempt
that was fenced and writes late can make nothing undone.

Each attempt begins at a checkpoint of an earlier one, or with nothing. Where an attempt falls back to an older checkpoint,
the newer ones of before are a dead branch: their output is not part of what the attempt will have written.
"""

from __future__ import annotations

import json
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


@dataclass(frozen=True, slots=True)
class Start:
    """How an attempt began."""

    generation: int
    restored: int | None
    """The checkpoint that it restored, ``None`` for a fresh start."""
    taken_by: int | None = None
    """The epoch of the attempt that took it, ``None`` where nobody said so."""


@dataclass(frozen=True, slots=True)
class Ancestry:
    """A checkpoint with all those before it, by the attempts that took them."""

    segments: tuple[tuple[int, int], ...]
    """Epochs, the newest first, each with the last of its checkpoints that counts."""

    def holds(self, epoch: int, checkpoint_id: int) -> bool:
        """Tell whether a checkpoint that an attempt took is part of the line."""
        return any(epoch == of and checkpoint_id <= last for of, last in self.segments)


@dataclass(frozen=True, slots=True)
class History:
    """How attempts began, and which of them took which checkpoint."""

    starts: Mapping[int, Start]
    """By epoch."""
    taken: Mapping[int, int]
    """Epochs by checkpoint, as far as the sink has seen the checkpoint."""

    def line_to(self, epoch: int, checkpoint_id: int) -> Ancestry:
        """
        Return the line that ends at a checkpoint.

        :param epoch: The attempt that took it.
        :raises CorruptStateError: if it cannot be told what the line holds.
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
        # Where nothing is known of before, the line may end; else the output of older attempts would seem to be a dead branch.
        taker = start.taken_by
        if taker is None or taker in self.starts:
            return
        older = [n for n, each in self.starts.items() if n < taker and each.generation == start.generation]
        if older:
            raise CorruptStateError(
                f"Expected that attempt {taker}, which took the restored checkpoint {start.restored}, had this sink with this "
                f"destination, as attempt {max(older)} had, found nothing of it there; the sink was changed in between and changed "
                f"back, so output is missing. Restore a checkpoint of attempt {max(older)}, choose another destination, or start "
                "over.",
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
                f"Expected committables with checkpoint {checkpoint_id}, found none; so it is not known whether it goes on "
                f"from checkpoint {doubtful[0]}, whose output is there. Restore from checkpoint {doubtful[-1]}, or start over.",
                checkpoint_id=checkpoint_id,
            )


def _between(taken: Mapping[int, int], epoch: int, after: int, until: int) -> list[int]:
    found: Iterable[int] = (n for n, taker in taken.items() if taker < epoch and after < n <= until)
    return sorted(found)


FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A file from its staging to its published name."""

    staged: str
    name: str
    """Relative to the target."""
    size_bytes: int
    rows: int
    footer_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """What one checkpoint adds to the target; equal commits give equal bytes."""

    job_name: str
    uid: str
    generation: int
    checkpoint_id: int
    epoch: int
    """The attempt that took the checkpoint, whoever commits it."""
    line: Ancestry
    """What this checkpoint goes on from; everything older that is not part of it was replaced."""
    schema: str
    partition_by: tuple[str, ...]
    files: tuple[PublishedFile, ...]
    is_end: bool = False
    """Whether it only says that an attempt succeeded without a checkpoint of its own."""

    @property
    def key(self) -> str:
        """Return its name in the ledger."""
        end = f"-end-{self.epoch}" if self.is_end else ""
        return f"{self.generation}-{self.checkpoint_id}{end}"

    @property
    def order(self) -> tuple[int, int]:
        """Return by what the newest record is known: nothing of a lower epoch comes after it."""
        return self.epoch, self.checkpoint_id

    @property
    def staged(self) -> frozenset[str]:
        """Return the names of its files in the staging directory."""
        return frozenset(file.staged for file in self.files)

    def replaces(self, older: CommitRecord) -> bool:
        """Tell whether this record, once committed, puts an older one out of force."""
        return older.order < self.order and not self.line.holds(older.epoch, older.checkpoint_id)

    def encode(self) -> bytes:
        """Return the record as JSON."""
        document = {
            "format_version": FORMAT_VERSION,
            "job": self.job_name,
            "uid": self.uid,
            "generation": self.generation,
            "checkpoint": self.checkpoint_id,
            "epoch": self.epoch,
            "line": self.line.segments,
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
        Return the record in a file.

        :param shown: Which file it is.
        :raises CorruptStateError: The file is damaged.
        :raises IncompatibleCheckpointError: A newer version of this package wrote it.
        """
        try:
            document = json.loads(content)
            version = int(document["format_version"])
            record = _from_document(document) if version == FORMAT_VERSION else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStateError(
                f"Expected a record of a sink in {shown}, found {content[:60]!r}; put the file back from a backup, or move "
                "the directory of the lineage away together with its files."
            ) from error
        if record is None:
            raise IncompatibleCheckpointError(
                f"Expected a record of format {FORMAT_VERSION} in {shown}, found format {version}; use the version of "
                "airflow-provider-statecheck that wrote it, or a newer one.",
                format_version=version,
            )
        return record


def _from_document(document: Mapping[str, Any]) -> CommitRecord:
    return CommitRecord(
        job_name=str(document["job"]),
        uid=str(document["uid"]),
        generation=int(document["generation"]),
        checkpoint_id=int(document["checkpoint"]),
        epoch=int(document["epoch"]),
        line=Ancestry(tuple((int(epoch), int(last)) for epoch, last in document["line"])),
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


def refuse_output_of_gone(context: SinkContext, target: str, has_output: Callable[[str], bool]) -> None:
    """
    Refuse a target that holds output of the same job whose stage is gone.

    To be called for a sink that never had the target. One that had it wrote beside the other while both were in use.

    :param target: The target, fit to be shown.
    :param has_output: Tells whether the target holds committed output of a lineage.
    :raises EnvironmentNotReadyError: if it does of one that is gone.
    """
    for uid in context.gone_uids:
        if has_output(lineage_of(context.job_id, uid)):
            stage, mine = (each.rpartition("/")[0] for each in (uid, context.uid))
            raise EnvironmentNotReadyError(
                f"Expected no output in {target} of a stage that is gone from job {context.job_name!r}, found output of {stage!r}, "
                f"beside which {mine!r} would write all of it again. If {mine!r} is its new name, say "
                f"renamed_uids={{{stage!r}: {mine!r}}} or uid={stage!r}; otherwise choose another target, or give the stage a "
                "job= of its own."
            )
