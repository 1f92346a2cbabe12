"""
Commit logs in a directory, for output that cannot change atomically together with the log.

::

    <log>/<lineage>/attempts/<epoch>-<number>.json   the log as one attempt left it; only that attempt writes such files
    <log>/<lineage>/commits/<generation>-<id>.json   the output of one checkpoint

An attempt claims the log by writing its first file, and then reads the files of older attempts. It writes the log with
the effects that it is about to carry out, each time under the next number: no file is ever overwritten, because several
filesystems would miss it for a moment. Before it carries them out, it checks for newer claims. Therefore either the
newer attempt reads the effects and completes them, or the older attempt sees the claim and stops.

Both kinds of files contain a digest of their other fields, which each read verifies: it is in no row and in no other
file. Without it, a changed byte could make another valid record, such as one that names other files.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CoordinatorError,
    CorruptStateError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_log import (
    ALL_CHECKPOINTS,
    CommitLog,
    CommitRange,
    LogChange,
    Publication,
)
from airflow_provider_statecheck.spark.connectors.exactly_once.committer import (
    CommitDestination,
    other_output_error,
    require_newest,
)
from airflow_provider_statecheck.spark.connectors.sink import TaskCommittable
from airflow_provider_statecheck.storage.file_operations import in_parallel
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact

_TRIES = 5
_CLAIM = 0
"""Number of the file of an attempt that only claims the log, and is empty."""
_NUMBERED = re.compile(r"(\d+)-(\d+)\.json")
_LOG = "the log of a sink"
_RECORD = "the output of a checkpoint"


class Output(ABC):
    """Output of a sink whose commit log is in a directory; all methods are idempotent."""

    @abstractmethod
    def publish(self, publication: Publication) -> None:
        """Show the output of a checkpoint to readers."""

    @abstractmethod
    def retract(self, publication: Publication) -> None:
        """Delete the output of a checkpoint, published or not; a late :meth:`publish` of it has no lasting effect."""

    def check(self, publication: Publication, newest: Callable[[], Publication | None]) -> None:  # noqa: B027 - optional hook
        """
        Check the output of a checkpoint before anything is written; does nothing by default.

        :param newest: Function that returns the newest output, even if it was retracted; ``None`` if there is none.
        :raises StateCheckError: if the output must not be published.
        """

    def listed(self) -> Sequence[str]:
        """Return the names of all published output; none by default."""
        return ()

    def sweep(self, listed: Sequence[str], current: CommitLog, last_epoch: int) -> None:  # noqa: B027 - optional hook
        """
        Delete published output that the log does not name, and prepared output of attempts up to an epoch.

        :param listed: Result of :meth:`listed` before the log was read.
        """


@dataclass(slots=True, kw_only=True)
class FileDestination(CommitDestination):
    """
    A destination whose log is in a directory.

    :param name: Name of the destination for error messages, without credentials.
    :param storage: Directory of the log; several sinks may share it.
    """

    name: str = field()
    storage: CheckpointStorage
    lineage: str
    committable: type[TaskCommittable]
    output: Output
    _written: LogFile | None = field(default=None, init=False)
    """Log that this attempt has read or written last; it is not read again, because no other attempt changes it."""
    _published: Publication | None = field(default=None, init=False)
    """Newest output that this attempt has published."""

    @override
    def log_of(self, lineage: str) -> CommitLog:
        return self.files_of(lineage).read()[0]

    @override
    def load(self, epoch: int) -> CommitLog:
        files = self.files_of(self.lineage)
        if self._written is None and files.newest()[0] < epoch:
            files.read()  # a log that cannot be read is not claimed
            files.claim(epoch)
        number = self._require_newest(epoch)
        if self._written is None or self._written.number != number:
            self._written = LogFile(number, *files.read())
        if not self._written.effects.is_empty:
            self._carry_out(epoch, self._written, None)
        return self._written.log

    @override
    def require_retractable(self, ranges: Sequence[CommitRange]) -> None:
        self.files_of(self.lineage).require_records(ranges, self.name)

    @override
    def require_same(self, committed: Publication) -> None:
        self.files_of(self.lineage).require_same(committed, self.name)

    @override
    def apply(self, epoch: int, change: LogChange) -> StateCheckError | None:
        files = self.files_of(self.lineage)
        effects = Effects(retracted=change.retracted)
        if change.publication is not None:
            self.output.check(change.publication, lambda: self._published or files.latest(change.before))
            effects = replace(effects, published=files.write_publication(change.publication))
        written = self._write(epoch, change.after, effects)
        self._require_newest(epoch)
        self._carry_out(epoch, written, change.publication)
        return None

    @override
    def sweep(self, epoch: int, last_epoch: int) -> None:
        # Listed before the log is read: all that is listed and not named then is of no attempt that goes on.
        files = self.files_of(self.lineage)
        listed, records = self.output.listed(), files.records()
        self._require_newest(epoch)
        current, _ = files.read()
        self.output.sweep(listed, current, last_epoch)
        files.prune(records, current, last_epoch)
        files.forget_attempts_before(epoch)

    def files_of(self, lineage: str) -> CommitFiles:
        """Return the files of the log of a lineage."""
        return CommitFiles(self.storage, lineage, self.committable)

    def _require_newest(self, epoch: int) -> int:
        newest, number = self.files_of(self.lineage).newest()
        require_newest(newest, epoch, self.name)
        return number

    def _carry_out(self, epoch: int, file: LogFile, published: Publication | None) -> None:
        # Publish before retracting: a reader never sees less output than before.
        files, effects = self.files_of(self.lineage), file.effects
        if effects.published:
            self._published = published or files.named_publication(effects.published)
            self.output.publish(self._published)
            self._write(epoch, file.log, replace(effects, published=""))
        if effects.retracted:
            for publication in files.publications(effects.retracted):
                self.output.retract(publication)
            self._write(epoch, file.log, Effects())

    def _write(self, epoch: int, log: CommitLog, effects: Effects) -> LogFile:
        written = LogFile((self._written.number if self._written else 0) + 1, log, effects)
        self.files_of(self.lineage).write(epoch, written)
        self._written = written
        return written


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Effects of a log change that are not carried out yet."""

    published: str = ""
    """Name of the record of the output to publish; empty for none."""
    retracted: tuple[CommitRange, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to carry out."""
        return not self.published and not self.retracted


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the log."""

    number: int
    """Number of the file among those of its attempt."""
    log: CommitLog
    effects: Effects


@dataclass(frozen=True, slots=True)
class CommitFiles:
    """Files of the log of one lineage."""

    storage: CheckpointStorage
    lineage: str
    committable: type[TaskCommittable]

    def newest(self) -> tuple[int, int]:
        """Return the epoch of the newest attempt and the number of its newest file; zeros if there is no file."""
        return max(self._attempts(), default=(0, 0))

    def claim(self, epoch: int) -> None:
        """Claim the log for an attempt."""
        self.storage.write_bytes(self._attempt_uri(epoch, _CLAIM), b"")

    def read(self) -> tuple[CommitLog, Effects]:
        """
        Return the log that the newest attempt left, with the effects that it may not have carried out.

        :raises CorruptStateError: if the file is damaged, or records have no log.
        """
        for _ in range(_TRIES - 1):
            # The attempt may have replaced the file since it was listed.
            with suppress(CheckpointNotFoundError):
                return self._read()
        return self._read()

    def write(self, epoch: int, file: LogFile) -> None:
        """
        Write a file on behalf of an attempt, and delete the one before it.

        :raises StorageError: if another driver of the same attempt has written it.
        """
        document = {"log": file.log.encode(), **encode(file.effects)}
        self.storage.write_bytes(self._attempt_uri(epoch, file.number), seal(document))
        self._delete(self._attempt_uri(epoch, file.number - 1))

    def write_publication(self, publication: Publication) -> str:
        """
        Record the output of a checkpoint and return the name of the record.

        :raises CorruptStateError: if another checkpoint with this id has a record.
        """
        name = _record_name(publication.generation, publication.checkpoint_id)
        document = {
            "generation": publication.generation,
            "epoch": publication.epoch,
            "checkpoint": publication.checkpoint_id,
            "owner": publication.owner,
            "committables": [each.to_json() for each in _sorted(publication).committables],
        }
        try:
            self.storage.write_bytes(f"{self._root}/commits/{name}", seal(document))
        except StorageError:
            self._require_no_other(publication)
            raise
        return name

    def _require_no_other(self, publication: Publication) -> None:
        if self.publication(publication.generation, publication.checkpoint_id) not in (None, _sorted(publication)):
            raise CorruptStateError(
                f"Expected no output of checkpoint {publication.checkpoint_id} in {redact(self._root)}, found that of "
                "another checkpoint with this id, which the database has lost. Clear the task with on_clear='restart' "
                "to replace it.",
                checkpoint_id=publication.checkpoint_id,
            )

    def publication(self, generation: int, checkpoint_id: int) -> Publication | None:
        """Return the recorded output of a checkpoint, ``None`` if there is none."""
        try:
            return self.named_publication(_record_name(generation, checkpoint_id))
        except CheckpointNotFoundError:
            return None

    def require_same(self, committed: Publication, name: str) -> None:
        """
        Require that the record of a committed checkpoint has the output of a repeated commit.

        :param name: Name of the destination for error messages.
        :raises CorruptStateError: if the output differs.
        :raises CoordinatorError: if there is no record: the checkpoint is older than the newest one and was skipped.
        """
        known = self.publication(committed.generation, committed.checkpoint_id)
        if known is None:
            raise CoordinatorError(
                f"Expected to commit to {name} a checkpoint after the newest one, found checkpoint "
                f"{committed.checkpoint_id} of attempt {committed.epoch}, which has no record; restore from "
                "the newest checkpoint, or start over.",
                checkpoint_id=committed.checkpoint_id,
            )
        if known != _sorted(committed):
            raise other_output_error(committed, name, "other output")

    def require_records(self, ranges: Iterable[CommitRange], name: str) -> None:
        """
        Require records of committed ranges; without them, their output could not be found and replaced.

        :param name: Name of the destination for error messages.
        :raises CorruptStateError: if all records were deleted.
        """
        if any(each.last != ALL_CHECKPOINTS for each in ranges) and not self.records():
            raise CorruptStateError(
                f"Expected the records of the output to replace in {name} below {redact(self._root)}/commits, found "
                "none; they were deleted. Restore the directory from a backup, or delete the output of the sink "
                "together with its log and start over."
            )

    def named_publication(self, name: str) -> Publication:
        """
        Return the output of a record.

        :raises CheckpointNotFoundError: if the record is missing.
        :raises CorruptStateError: if it is damaged.
        """
        uri = f"{self._root}/commits/{name}"
        document = unseal(self.storage.read_bytes(uri), _RECORD, redact(uri))
        try:
            return Publication(
                generation=int(document["generation"]),
                epoch=int(document["epoch"]),
                checkpoint_id=int(document["checkpoint"]),
                committables=tuple(self.committable.from_json(each) for each in document["committables"]),
                owner=str(document["owner"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(_RECORD, redact(uri), f"the fields {', '.join(document)}") from error

    def publications(self, ranges: Iterable[CommitRange]) -> list[Publication]:
        """Return the recorded output of ranges, in the order of the checkpoints."""
        log = CommitLog(committed=tuple(ranges))
        names = [_record_name(*key) for key in self.records() if log.names(*key)] if log.committed else []
        return in_parallel(self.named_publication, names, is_local=self.storage.is_local)

    def latest(self, log: CommitLog) -> Publication | None:
        """Return the newest output, for its schema, even if it was retracted; ``None`` if there is none."""
        known = self.records()
        newest = max([key for key in known if log.names(*key)] or known, default=None)
        return self.publication(*newest) if newest else None

    def visible(self, log: CommitLog, effects: Effects) -> list[Publication]:
        """
        Return the output that readers of the log see: that before a commit until all of the commit is published.

        :param log: Log as :meth:`read` returned it.
        :param effects: Effects as :meth:`read` returned them.
        """
        if not effects.published:
            return self.publications(log.committed)
        found = self.publications((*log.committed, *effects.retracted))
        return [each for each in found if _record_name(each.generation, each.checkpoint_id) != effects.published]

    def records(self) -> list[tuple[int, int]]:
        """Return the generation and the id of each checkpoint with a record."""
        return sorted(self._numbers_in("commits"))

    def prune(self, records: Sequence[tuple[int, int]], log: CommitLog, last_epoch: int) -> None:
        """
        Delete records that a log does not name, of checkpoints that attempts up to an epoch took.

        The newest record stays if the log names none, for its schema.

        :param records: Result of :meth:`records` before the log was read.
        """
        unnamed = [key for key in records if not log.names(*key)]
        for key in unnamed if len(unnamed) < len(records) else unnamed[:-1]:
            found = self.publication(*key)
            if found is not None and found.epoch <= last_epoch:
                self._delete(f"{self._root}/commits/{_record_name(*key)}")

    def forget_attempts_before(self, epoch: int) -> None:
        """Delete the files of older attempts, whose log the attempt has taken over."""
        for each, number in self._attempts():
            if each < epoch:
                self._delete(self._attempt_uri(each, number))

    def _read(self) -> tuple[CommitLog, Effects]:
        for epoch, number in sorted(self._attempts(), reverse=True):
            if number == _CLAIM:
                continue  # of an attempt that ended before it wrote the log
            data = self.storage.read_bytes(self._attempt_uri(epoch, number))
            return self._decode(data, redact(self._attempt_uri(epoch, number)))
        self._require_no_records()
        return CommitLog(), Effects()

    def _attempts(self) -> list[tuple[int, int]]:
        return self._numbers_in("attempts")

    def _numbers_in(self, directory: str) -> list[tuple[int, int]]:
        found = (_NUMBERED.fullmatch(name) for name in self.storage.list_files(f"{self._root}/{directory}"))
        return [(int(match[1]), int(match[2])) for match in found if match]

    def _delete(self, uri: str) -> None:
        self.storage.delete_file_below(self.storage.base_uri, uri)

    def _require_no_records(self) -> None:
        # Output without a log would look like orphan files and be deleted.
        if self.records():
            raise CorruptStateError(
                f"Expected the log of a sink in {redact(self._root)}, found only records of its commits; an older "
                "version of airflow-provider-statecheck wrote them, or the log was deleted. Restore the log from a "
                "backup, or move the directory away together with the output, and start over."
            )

    def _decode(self, data: bytes, shown: str) -> tuple[CommitLog, Effects]:
        document = unseal(data, _LOG, shown)
        try:
            return CommitLog.decode(document["log"], shown), decode(Effects, document)
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(_LOG, shown, f"the fields {', '.join(document)}") from error

    @property
    def _root(self) -> str:
        return f"{self.storage.base_uri}/{self.lineage}"

    def _attempt_uri(self, epoch: int, number: int) -> str:
        return f"{self._root}/attempts/{epoch}-{number}.json"


def _record_name(generation: int, checkpoint_id: int) -> str:
    return f"{generation}-{checkpoint_id}.json"


def _sorted(publication: Publication) -> Publication:
    def key(each: TaskCommittable) -> Any:
        return json.dumps(each.to_json(), sort_keys=True)

    return replace(publication, committables=tuple(sorted(publication.committables, key=key)))


_DIGEST = "sha256"


def seal(document: Mapping[str, Any]) -> bytes:
    """
    Return the content of a file; equal documents have equal contents.

    :param document: Plain JSON values with string keys.
    """
    return json.dumps({**document, _DIGEST: _digest(document)}, sort_keys=True, indent=1).encode()


def unseal(data: bytes, what: str, where: str) -> dict[str, Any]:
    """
    Return the document of a file after verifying its digest.

    :param what: Description of the document for error messages.
    :param where: Location of the file for error messages.
    :raises CorruptStateError: if the content is no sealed document, or was changed after it was written.
    """
    try:
        document: dict[str, Any] = json.loads(data)
        expected = str(document.pop(_DIGEST))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(what, where, repr(data[:100])) from error
    if _digest(document) != expected:
        raise damaged(f"{what} with the digest {expected[:12]}…", where, "content with another one")
    return document


def damaged(expected: str, where: str, found: str) -> CorruptStateError:
    """Return the error for a file with other content than expected."""
    return CorruptStateError(
        f"Expected {expected} in {where}, found {found}; the file was changed after it was written. Restore the file "
        "from a backup, or delete the output of the sink together with its log and start over."
    )


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
