"""
Base class for sinks whose transactions survive the process that began them.

::

    <log>/<lineage>/attempts/<epoch>.json            the log as one attempt left it; only that attempt writes the file
    <log>/<lineage>/commits/<generation>-<id>.json   the transactions of one checkpoint

An attempt claims the log by writing its file, and then reads the files of older attempts. After writing a commit, an
attempt checks for newer claims before it applies the commit. Therefore either the newer attempt reads the commit, or
the older attempt sees the claim and stops.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, final, get_args

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    StaleAttemptError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.sinks.sink import (
    OnEarlierOutput,
    SinkContext,
    SinkTaskContext,
    TaskCommittable,
    require_one_of,
)
from airflow_provider_statecheck.spark.sinks.target_files import lineage_of, open_target
from airflow_provider_statecheck.spark.sinks.two_phase_commit_log import CommitLog, CommitRange, LogChange, Publication
from airflow_provider_statecheck.spark.sinks.two_phase_committer import TwoPhaseCommitter
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact

_ATTEMPT = re.compile(r"(\d+)\.json")
_COMMIT = re.compile(r"(\d+)-(\d+)\.json")
Transaction = Mapping[str, Any]


class TwoPhaseCommitSink(ABC):
    """
    Base class for custom sinks with two-phase commit.

    A Spark task calls :meth:`begin_transaction` once, :meth:`write` any number of times, and :meth:`pre_commit` or
    :meth:`abort_transaction` once. When the checkpoint is complete, the driver calls :meth:`commit_transaction`. The
    base class records commits in a log and uses it to order commits, and to roll back output after a restore or a fresh
    start.

    Subclasses guarantee:

    - After :meth:`pre_commit`, a transaction survives the task and the driver, and its commit cannot fail permanently.
    - :meth:`commit_transaction` and :meth:`abort_transaction` are idempotent.
    - An aborted transaction stays aborted: a later or concurrent commit of it fails or has no effect.

    :param log: Directory of the commit log as a path or an fsspec URI; several sinks may share it.
    :param storage_options: Filesystem options of the log; by default those of the stage's checkpoint storage.
    :param on_earlier_output: Handling of the output of earlier starts by a fresh start: ``retract`` rolls it back with
        the first commit, ``refuse`` fails the start.
    :raises InvalidConfigurationError: if an argument is out of range.
    """

    can_retract: ClassVar[bool] = True
    """Whether :meth:`abort_transaction` rolls back committed transactions; if not, a start that requires it fails."""

    def __init__(
        self,
        log: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        on_earlier_output: OnEarlierOutput = "retract",
    ) -> None:
        require_one_of("on_earlier_output", on_earlier_output, get_args(OnEarlierOutput))
        self._log = log
        self._log_options = None if storage_options is None else HiddenOptions(storage_options)
        self._refuses_earlier_output = on_earlier_output == "refuse"
        self._lineage: str | None = None
        self._committer: TwoPhaseCommitter | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks write; only the driver commits.
        return {**self.__dict__, "_committer": None}

    @abstractmethod
    def begin_transaction(self, context: SinkTaskContext) -> dict[str, Any]:
        """
        Begin a transaction in a Spark task and return its identifier.

        :param context: Context of the task; its ``task_id`` is unique for each transaction.
        :return: Plain JSON with which any process can commit or abort the transaction. Checkpoints store it; do not
            include secrets.
        """

    @abstractmethod
    def write(self, transaction: dict[str, Any], table: Any) -> None:
        """
        Write an Arrow table within a transaction of this task; may add fields to the transaction.

        The rows must stay invisible to readers until the commit.
        """

    @abstractmethod
    def pre_commit(self, transaction: dict[str, Any]) -> None:
        """Make a transaction of this task durable."""

    @abstractmethod
    def commit_transaction(self, transaction: Mapping[str, Any]) -> None:
        """Publish the output of a transaction, from any process."""

    @abstractmethod
    def abort_transaction(self, transaction: Mapping[str, Any]) -> None:
        """Discard the output of a transaction, from any process and in any state of the transaction."""

    def check(self, context: SinkContext) -> None:  # noqa: B027 - optional hook
        """
        Check on the driver, before any work, that the destination is reachable and compatible; does nothing by default.

        :raises StateCheckError: if the sink cannot write to the destination.
        """

    @final
    def open(self, context: SinkContext) -> None:
        """
        Check the destination and take ownership of it from earlier attempts.

        :raises StaleAttemptError: if a newer attempt owns the destination.
        :raises EnvironmentNotReadyError: if the destination has output to delete that is not retractable, or that the
            sink refuses.
        :raises CorruptStateError: if output of the restored checkpoint was replaced.
        """
        self.check(context)
        committer = TwoPhaseCommitter(
            destination=self._commit_log(context),
            context=context,
            lineage=lineage_of(context.job_id, context.uid),
            can_retract=self.can_retract,
            refuses_earlier_output=self._refuses_earlier_output,
        )
        committer.open()
        self._lineage, self._committer = committer.lineage, committer

    @final
    def writer(self, context: SinkTaskContext) -> TransactionWriter:
        """Return the writer of one Spark task."""
        if self._lineage is None:
            raise CoordinatorError(
                "Expected the sink to be opened before it is used, found it unopened; open it on the driver."
            )
        return TransactionWriter(self, self._lineage, context)

    @final
    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        """
        Commit the transactions of a completed checkpoint; idempotent.

        :raises StaleAttemptError: if a newer attempt owns the destination.
        :raises CoordinatorError: if the checkpoint is not in the ancestry of the attempt.
        """
        found = [TransactionCommittable.from_json(document) for document in committables]
        self._opened().commit(checkpoint_id, found)

    @final
    def close(self, succeeded: bool) -> None:
        """
        End the attempt; after a success, roll back the output outside its ancestry.

        :raises StaleAttemptError: if a newer attempt owns the destination.
        """
        committer, self._committer = self._committer, None
        # After a failure, the next attempt determines which transactions it still needs.
        if committer is not None and succeeded:
            committer.close()

    def _commit_log(self, context: SinkContext) -> FileCommitLog:
        options = context.storage_options if self._log_options is None else self._log_options.reveal()
        return FileCommitLog(
            storage=open_target(self._log, options),
            lineage=lineage_of(context.job_id, context.uid),
            commit=self.commit_transaction,
            abort=self.abort_transaction,
        )

    def _opened(self) -> TwoPhaseCommitter:
        if self._committer is None:
            raise CoordinatorError("Expected the sink to be open, found it closed; open it before commits.")
        return self._committer


class TransactionWriter:
    """Writes the output of one Spark task within one transaction."""

    def __init__(self, sink: TwoPhaseCommitSink, lineage: str, context: SinkTaskContext) -> None:
        self._sink = sink
        self._lineage = lineage
        self._context = context
        self._transaction = sink.begin_transaction(context)

    def write(self, table: Any) -> None:
        """Write a table with the columns of the schema, in any order."""
        if table.num_rows:
            columns = self._context.schema.remove_metadata()
            self._sink.write(self._transaction, table.select(columns.names).cast(columns))

    def prepare_commit(self) -> list[dict[str, Any]]:
        """Make the transaction durable and return its committable."""
        self._sink.pre_commit(self._transaction)
        committable = TransactionCommittable(
            lineage=self._lineage,
            epoch=self._context.epoch,
            subtask=self._context.subtask,
            transaction=self._transaction,
        )
        return [committable.to_json()]

    def abort(self) -> None:
        """Abort the transaction."""
        self._sink.abort_transaction(self._transaction)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCommittable(TaskCommittable):
    """Transaction of one task."""

    KIND: ClassVar[str] = "a transaction"

    transaction: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """
        Return the committable as plain JSON values.

        :raises UnsupportedStateError: if the transaction is not plain JSON.
        """
        document = TaskCommittable.to_json(self)
        try:
            is_same = json.loads(json.dumps(document)) == document
        except (TypeError, ValueError):
            is_same = False
        if not is_same:
            raise UnsupportedStateError(
                "Expected a transaction of plain JSON values with string keys, because checkpoints store it, found "
                f"{type(self.transaction).__name__} with other values; return an identifier of the transaction, not a handle."
            )
        return document

    @classmethod
    def _output(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        return {"transaction": dict(document["transaction"])}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCommitLog:
    """
    Commit log of one lineage in a directory.

    :param storage: Directory of the log.
    :param lineage: Identifier of the sink.
    :param commit: Function that commits a transaction; idempotent.
    :param abort: Function that permanently aborts a transaction, committed or not; idempotent.
    """

    storage: CheckpointStorage
    lineage: str
    commit: Callable[[Transaction], None] = field(repr=False)
    abort: Callable[[Transaction], None] = field(repr=False)

    @property
    def name(self) -> str:
        """Name of the destination for error messages, without credentials."""
        return f"the destination with the log {redact(self.storage.base_uri)}"

    def log_of(self, lineage: str) -> CommitLog:
        """Return the log of a lineage without claiming it."""
        log = replace(self, lineage=lineage)
        return log._newest(log._claims())[0]

    def load(self, epoch: int) -> CommitLog:
        """
        Claim the log for an attempt, apply its pending effects, and return it.

        :raises StaleAttemptError: if a newer attempt has claimed the log.
        """
        epochs = self._claims()
        if epoch not in epochs:
            self.storage.write_bytes(self._attempt_uri(epoch), b"", overwrite=True)
            epochs = self._claims()
        self._require_newest(epoch, epochs)
        found, effects = self._newest(epochs)
        if not effects.is_empty:
            self._apply_effects(effects)
            self._write(epoch, found, Effects())
        return found

    def apply(self, epoch: int, change: LogChange) -> bool:
        """
        Write the change, and apply its effects unless a newer attempt has claimed the log.

        :raises StaleAttemptError: if a newer attempt has claimed the log; no effect is applied in this case.
        """
        effects = Effects(published=self._write_publication(change.publication), retracted=change.retracted)
        self._write(epoch, change.after, effects)
        self._require_newest(epoch, self._claims())
        if not effects.is_empty:
            self._apply_effects(effects)
            self._write(epoch, change.after, Effects())
        return True

    def _apply_effects(self, effects: Effects) -> None:
        # Publish before retracting: a reader never sees less output than before.
        if effects.published:
            for transaction in self._transactions(effects.published):
                self.commit(transaction)
        for name in self._commit_files_of(effects.retracted):
            for transaction in self._transactions(name):
                self.abort(transaction)

    def _newest(self, epochs: list[int]) -> tuple[CommitLog, Effects]:
        for epoch in sorted(epochs, reverse=True):
            text = self.storage.read_bytes(self._attempt_uri(epoch)).decode()
            if text:  # an empty file is the claim of an attempt that ended before it read the log
                return self._decode(text, self._attempt_uri(epoch))
        return CommitLog(), Effects()

    def _decode(self, text: str, uri: str) -> tuple[CommitLog, Effects]:
        try:
            document = json.loads(text)
            effects = Effects(
                published=str(document["published"]),
                retracted=tuple(CommitRange.from_json(each) for each in document["retracted"]),
            )
            return CommitLog.decode(document["log"], redact(uri)), effects
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptStateError(
                f"Expected the log of a sink in {redact(uri)}, found {text[:100]!r}; restore the file from a backup."
            ) from error

    def _write(self, epoch: int, log: CommitLog, effects: Effects) -> None:
        document = {
            "log": log.encode(),
            "published": effects.published,
            "retracted": [each.to_json() for each in effects.retracted],
        }
        self.storage.write_bytes(self._attempt_uri(epoch), json.dumps(document).encode(), overwrite=True)

    def _write_publication(self, publication: Publication | None) -> str:
        if publication is None:
            return ""
        name = f"{publication.generation}-{publication.checkpoint_id}.json"
        transactions = [each.transaction for each in publication.committables]
        document = {"epoch": publication.epoch, "transactions": transactions}
        data = json.dumps(document, sort_keys=True).encode()
        self.storage.write_bytes(f"{self._root}/commits/{name}", data)
        return name

    def _transactions(self, name: str) -> list[Transaction]:
        uri = f"{self._root}/commits/{name}"
        try:
            return list(json.loads(self.storage.read_bytes(uri))["transactions"])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptStateError(
                f"Expected the transactions of a checkpoint in {redact(uri)}, found other content; restore the file from a "
                "backup."
            ) from error

    def _commit_files_of(self, ranges: tuple[CommitRange, ...]) -> list[str]:
        if not ranges:
            return []
        found = (_COMMIT.fullmatch(name) for name in self.storage.list_files(f"{self._root}/commits"))
        keys = sorted((int(match[1]), int(match[2]), match[0]) for match in found if match)
        return [name for _, n, name in keys if any(each.first <= n <= each.last for each in ranges)]

    def _claims(self) -> list[int]:
        found = (_ATTEMPT.fullmatch(name) for name in self.storage.list_files(f"{self._root}/attempts"))
        return [int(match[1]) for match in found if match]

    def _require_newest(self, epoch: int, epochs: list[int]) -> None:
        if max(epochs, default=0) > epoch:
            raise StaleAttemptError(
                f"Attempt {epoch} no longer owns {self.name}: attempt {max(epochs)} took it over; stop attempt {epoch}."
            )

    @property
    def _root(self) -> str:
        return f"{self.storage.base_uri}/{self.lineage}"

    def _attempt_uri(self, epoch: int) -> str:
        return f"{self._root}/attempts/{epoch}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Effects of a log change that are not applied yet."""

    published: str = ""
    """Name of a file with transactions to commit; empty for none."""
    retracted: tuple[CommitRange, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to apply."""
        return not self.published and not self.retracted
