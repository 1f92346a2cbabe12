"""Base class for sinks whose transactions survive the process that began them."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, final

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_files import FileDestination, Output
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_log import Publication
from airflow_provider_statecheck.spark.connectors.exactly_once.committing_sink import CommittingSink
from airflow_provider_statecheck.spark.connectors.exactly_once.places import Place
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import open_target
from airflow_provider_statecheck.spark.connectors.sink import (
    OnEarlierOutput,
    SinkContext,
    SinkTaskContext,
    SinkWriter,
    TaskCommittable,
)
from airflow_provider_statecheck.spark.snapshots.executor_io import hidden_options
from airflow_provider_statecheck.storage.uris import redact

_KIND = "transactions"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCommittable(TaskCommittable):
    """Transaction of one task."""

    KIND: ClassVar[str] = "a transaction"

    transaction: dict[str, Any]

    @property
    @override
    def has_output(self) -> bool:
        return True

    @override
    def to_json(self) -> dict[str, Any]:
        """
        Return the committable as plain JSON values.

        :raises UnsupportedStateError: if the transaction is not plain JSON.
        """
        try:
            is_same = json.loads(json.dumps(self.transaction)) == self.transaction
        except (TypeError, ValueError):
            is_same = False
        if not is_same:
            raise UnsupportedStateError(
                "Expected a transaction of plain JSON values with string keys, because checkpoints store it, found "
                f"{type(self.transaction).__name__} with other values; return an identifier of the transaction, not a "
                "handle."
            )
        return TaskCommittable.to_json(self)


class TwoPhaseCommitSink(CommittingSink):
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

    _committable: ClassVar[type[TransactionCommittable]] = TransactionCommittable
    can_retract: bool = True
    """Whether :meth:`abort_transaction` rolls back committed transactions; if not, a start that requires it fails."""

    def __init__(
        self,
        log: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        on_earlier_output: OnEarlierOutput = "retract",
    ) -> None:
        super().__init__(on_earlier_output)
        self._log = log
        self._log_options = hidden_options(storage_options)
        self._lineage: str | None = None

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

    def check(self, context: SinkContext) -> None:
        """
        Check on the driver, before any work, that the destination is reachable and compatible; does nothing by default.

        :raises StateCheckError: if the sink cannot write to the destination.
        """

    def at_log(self, log: str) -> Self | None:
        """
        Return the sink with the commit log of an earlier run, to commit or abort its transactions; by default ``None``.

        A sink with another log in each run needs it for runs that ended before their last commit, and to retract the
        output of runs that start again.

        :param log: URI of that log.
        :return: A sink with this log; ``None`` if there is none.
        """
        return None

    @final
    @override
    def at(self, place: Place) -> Self | None:
        return self.at_log(place.address) if place.kind == _KIND else None

    @final
    @override
    def _place(self, context: SinkContext) -> Place:
        return Place.of_uri(_KIND, open_target(self._log, context.options(self._log_options)).base_uri)

    @final
    @override
    def open(self, context: SinkContext) -> None:
        super().open(context)
        self._lineage = context.lineage

    @final
    def writer(self, context: SinkTaskContext) -> TransactionWriter:
        """Return the writer of one Spark task."""
        return TransactionWriter(self, self._require_opened(self._lineage), context)

    @final
    @override
    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        super().commit(checkpoint_id, committables)

    @final
    @override
    def close(self, succeeded: bool) -> None:
        super().close(succeeded)

    @override
    def _destination(self, context: SinkContext) -> FileDestination:
        self.check(context)
        storage = open_target(self._log, context.options(self._log_options))
        return FileDestination(
            name=f"the destination with the log {redact(storage.base_uri)}",
            storage=storage,
            lineage=context.lineage,
            committable=TransactionCommittable,
            output=TransactionOutput(self),
        )


@dataclass(frozen=True, slots=True)
class TransactionOutput(Output):
    """Output of a sink with transactions."""

    sink: TwoPhaseCommitSink = field(repr=False)

    @override
    def publish(self, publication: Publication) -> None:
        for each in publication.committables:
            self.sink.commit_transaction(each.transaction)

    @override
    def retract(self, publication: Publication) -> None:
        for each in publication.committables:
            self.sink.abort_transaction(each.transaction)


class TransactionWriter(SinkWriter):
    """Writes the output of one Spark task within one transaction."""

    def __init__(self, sink: TwoPhaseCommitSink, lineage: str, context: SinkTaskContext) -> None:
        self._sink = sink
        self._lineage = lineage
        self._context = context
        self._transaction = sink.begin_transaction(context)

    @override
    def write(self, table: Any) -> None:
        if table.num_rows:
            columns = self._context.schema.remove_metadata()
            self._sink.write(self._transaction, table.select(columns.names).cast(columns))

    @override
    def prepare_commit(self) -> list[dict[str, Any]]:
        self._sink.pre_commit(self._transaction)
        committable = TransactionCommittable(
            lineage=self._lineage,
            epoch=self._context.epoch,
            subtask=self._context.subtask,
            transaction=self._transaction,
        )
        return [committable.to_json()]

    @override
    def abort(self) -> None:
        self._sink.abort_transaction(self._transaction)
