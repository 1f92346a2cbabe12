"""A sink for any destination with transactions that outlive the process which began them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, final, get_args

from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.spark.sinks.choices import OnEarlierOutput, require_one_of
from airflow_provider_statecheck.spark.sinks.names import lineage_of
from airflow_provider_statecheck.spark.sinks.sink import SinkContext, SinkTaskContext
from airflow_provider_statecheck.spark.sinks.target_files import open_target
from airflow_provider_statecheck.spark.sinks.two_phase_commit.committable import TransactionCommittable
from airflow_provider_statecheck.spark.sinks.two_phase_commit.committer import TwoPhaseCommitter
from airflow_provider_statecheck.spark.sinks.two_phase_commit.file_log import FileCommitLog
from airflow_provider_statecheck.spark.snapshots.executor_files import HiddenOptions


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
