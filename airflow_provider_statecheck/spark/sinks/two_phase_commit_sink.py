"""
A sink for destinations whose transactions survive the process that began them.

::

    <log>/<lineage>/attempts/<epoch>.json            the log as one attempt left it; only that attempt writes the file
    <log>/<lineage>/commits/<generation>-<id>.json   the transactions of one checkpoint

An attempt first leaves its file, which is a claim, and then reads those of older ones. Whoever adds a commit looks for newer
claims afterwards. So either the newer attempt reads the commit, or the older one sees the claim and does nothing.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCommittable(TaskCommittable):
    """The transaction of one task."""

    KIND: ClassVar[str] = "a transaction"

    transaction: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """
        Return it as plain values.

        :raises UnsupportedStateError: if the transaction is not plain JSON.
        """
        document = TaskCommittable.to_json(self)
        try:
            is_same = json.loads(json.dumps(document)) == document
        except (TypeError, ValueError):
            is_same = False
        if not is_same:
            raise UnsupportedStateError(
                "Expected a transaction of plain JSON values with text as keys, because it is kept in checkpoints, found "
                f"{type(self.transaction).__name__} with other values; return what names it, not what works on it."
            )
        return document

    @classmethod
    def _output(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        return {"transaction": dict(document["transaction"])}


_ATTEMPT = re.compile(r"(\d+)\.json")
_COMMIT = re.compile(r"(\d+)-(\d+)\.json")

Transaction = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What a change of the log does to the output."""

    published: str = ""
    """The name of a file of transactions; empty for none."""
    retracted: tuple[CommitRange, ...] = ()

    @property
    def is_nothing(self) -> bool:
        """Tell whether there is nothing to do."""
        return not self.published and not self.retracted


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCommitLog:
    """
    The log of one lineage, and what carries its changes out.

    :param commit: Commits a transaction; may be repeated.
    :param abort: Takes a transaction back, committed or not, for good; may be repeated.
    """

    storage: CheckpointStorage
    lineage: str
    commit: Callable[[Transaction], None] = field(repr=False)
    abort: Callable[[Transaction], None] = field(repr=False)

    @property
    def name(self) -> str:
        """The log, fit to be shown."""
        return f"the destination with the log {redact(self.storage.base_uri)}"

    def log_of(self, lineage: str) -> CommitLog:
        """Return the log of any sink as it stands, without claiming it."""
        other = replace(self, lineage=lineage)
        return other._newest(other._claims())[0]

    def load(self, epoch: int) -> CommitLog:
        """
        Claim the log for an attempt, finish what was begun, and return it.

        :raises StaleAttemptError: A newer attempt has claimed it.
        """
        epochs = self._claims()
        if epoch not in epochs:
            self.storage.write_bytes(self._attempt(epoch), b"", overwrite=True)
            epochs = self._claims()
        self._require_newest(epoch, epochs)
        found, effects = self._newest(epochs)
        if not effects.is_nothing:
            self._carry_out(effects)
            self._write(epoch, found, Effects())
        return found

    def apply(self, epoch: int, change: LogChange) -> bool:
        """
        Write the change, and carry it out unless a newer attempt has claimed the log.

        :raises StaleAttemptError: One has; nothing is done then.
        """
        effects = Effects(published=self._write_publication(change.publication), retracted=change.retracted)
        self._write(epoch, change.after, effects)
        self._require_newest(epoch, self._claims())
        if not effects.is_nothing:
            self._carry_out(effects)
            self._write(epoch, change.after, Effects())
        return True

    def _carry_out(self, effects: Effects) -> None:
        # The new output first: a reader never sees less than before.
        if effects.published:
            for transaction in self._transactions(effects.published):
                self.commit(transaction)
        for name in self._names_of(effects.retracted):
            for transaction in self._transactions(name):
                self.abort(transaction)

    def _newest(self, epochs: list[int]) -> tuple[CommitLog, Effects]:
        for epoch in sorted(epochs, reverse=True):
            text = self.storage.read_bytes(self._attempt(epoch)).decode()
            if text:  # else a claim of an attempt that ended before it knew the log
                return self._decode(text, self._attempt(epoch))
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
                f"Expected the log of a sink in {redact(uri)}, found {text[:100]!r}; somebody changed it."
            ) from error

    def _write(self, epoch: int, log: CommitLog, effects: Effects) -> None:
        document = {
            "log": log.encode(),
            "published": effects.published,
            "retracted": [each.to_json() for each in effects.retracted],
        }
        self.storage.write_bytes(self._attempt(epoch), json.dumps(document).encode(), overwrite=True)

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
                f"Expected the transactions of a checkpoint in {redact(uri)}, found something else; somebody changed it."
            ) from error

    def _names_of(self, ranges: tuple[CommitRange, ...]) -> list[str]:
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
                f"Attempt {max(epochs)} has taken {self.name} over, attempt {epoch} may not write there any more; stop, and "
                "let the newer one go on."
            )

    @property
    def _root(self) -> str:
        return f"{self.storage.base_uri}/{self.lineage}"

    def _attempt(self, epoch: int) -> str:
        return f"{self._root}/attempts/{epoch}.json"


class TwoPhaseCommitSink(ABC):
    """
    A base for sinks of your own.

    In a Spark task: :meth:`begin_transaction` once, :meth:`write` any number of times, :meth:`pre_commit` once, or
    :meth:`abort_transaction`. On the driver, when the checkpoint is complete: :meth:`commit_transaction`. Who commits what, in
    which order, and what has to go after a fall-back or a fresh start is settled here, by a log in a directory.

    What you have to see to:

    - After :meth:`pre_commit` a transaction outlives the task and the driver, and committing it cannot be refused any more.
    - Committing what is committed, and aborting what is aborted, does nothing.
    - What is aborted stays so: to commit it afterwards fails or does nothing, however close both come to each other.

    :param log: A directory for the log of commits, a path or any fsspec URI; several sinks may share it.
    :param storage_options: Options of its filesystem; by default those of the stage's checkpoint storage.
    :param on_earlier_output: What a fresh start does with the output of earlier ones: ``retract`` takes it back when the first
        output of the new one is committed, ``refuse`` does not start.
    :raises InvalidConfigurationError: for a value out of its range.
    """

    can_retract: ClassVar[bool] = True
    """Whether :meth:`abort_transaction` takes back what was committed; if not, a start that needs it is refused."""

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
        Begin a transaction in a Spark task, and return what names it.

        :param context: Its ``task_id`` is a name that no other transaction has.
        :return: Plain JSON, from which any process can commit or abort; it is kept in checkpoints, so without secrets.
        """

    @abstractmethod
    def write(self, transaction: dict[str, Any], table: Any) -> None:
        """
        Write an Arrow table within a transaction of this task; what is learned may be added to the transaction.

        Nothing of it may be seen by a reader before the commit.
        """

    @abstractmethod
    def pre_commit(self, transaction: dict[str, Any]) -> None:
        """Make a transaction of this task durable."""

    @abstractmethod
    def commit_transaction(self, transaction: Mapping[str, Any]) -> None:
        """Show what a transaction wrote, from any process."""

    @abstractmethod
    def abort_transaction(self, transaction: Mapping[str, Any]) -> None:
        """Throw away what a transaction wrote, from any process and at any stage of its life."""

    def check(self, context: SinkContext) -> None:  # noqa: B027 - most have nothing to look at
        """
        Look on the driver, before any work, whether the destination can be reached and fits; by default it does.

        :raises StateCheckError: It does not; says why.
        """

    @final
    def open(self, context: SinkContext) -> None:
        """
        Check the destination and take it over from earlier attempts.

        :raises StaleAttemptError: A newer attempt has it.
        :raises EnvironmentNotReadyError: It holds output that has to go and may not.
        :raises CorruptStateError: Output of the restored checkpoint was replaced.
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
            raise CoordinatorError("Expected the sink to be opened before it is used; open it on the driver.")
        return TransactionWriter(self, self._lineage, context)

    @final
    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        """
        Commit the transactions of a completed checkpoint, once however often it is tried.

        :raises StaleAttemptError: A newer attempt has the destination.
        :raises CoordinatorError: The attempt does not go on from the checkpoint.
        """
        found = [TransactionCommittable.from_json(document) for document in committables]
        self._opened().commit(checkpoint_id, found)

    @final
    def close(self, succeeded: bool) -> None:
        """
        End the attempt; after a success nothing stays but what was committed.

        :raises StaleAttemptError: A newer attempt has the destination.
        """
        committer, self._committer = self._committer, None
        # After a failure the next attempt knows what is still needed.
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
    """Writes what one Spark task gives out within one transaction."""

    def __init__(self, sink: TwoPhaseCommitSink, lineage: str, context: SinkTaskContext) -> None:
        self._sink = sink
        self._lineage = lineage
        self._context = context
        self._transaction = sink.begin_transaction(context)

    def write(self, table: Any) -> None:
        """Take a table with the columns of the schema, in any order."""
        if table.num_rows:
            columns = self._context.schema.remove_metadata()
            self._sink.write(self._transaction, table.select(columns.names).cast(columns))

    def prepare_commit(self) -> list[dict[str, Any]]:
        """Make the transaction durable and return what commits it."""
        self._sink.pre_commit(self._transaction)
        committable = TransactionCommittable(
            lineage=self._lineage,
            epoch=self._context.epoch,
            subtask=self._context.subtask,
            transaction=self._transaction,
        )
        return [committable.to_json()]

    def abort(self) -> None:
        """Throw the transaction away."""
        self._sink.abort_transaction(self._transaction)
