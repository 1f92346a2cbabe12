"""A Delta table: what it holds at one version, and the commit of the next one, which only one writer can win."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from airflow_provider_statecheck.checkpoint.clock import Clock, SystemClock
from airflow_provider_statecheck.exceptions import StateCheckError, StorageError
from airflow_provider_statecheck.spark.sinks.delta.committable import DeltaFile
from airflow_provider_statecheck.spark.sinks.delta.library import deltalake
from airflow_provider_statecheck.spark.sinks.delta.names import lineage_of_data_file
from airflow_provider_statecheck.spark.snapshots.executor_files import HiddenOptions
from airflow_provider_statecheck.spark.sources.partitions import partition_of
from airflow_provider_statecheck.storage.failures import advice
from airflow_provider_statecheck.storage.options import conceal, harmless
from airflow_provider_statecheck.storage.uris import redact

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCommit:
    """What one version changes."""

    versions: Mapping[str, int] = field(default_factory=dict)
    """The version that each application has from then on."""
    note: Mapping[str, Any] = field(default_factory=dict)
    """What the history of the table tells of it."""
    added: Sequence[DeltaFile] = ()
    removed: Mapping[str, int | None] = field(default_factory=dict)
    """Names of files with their sizes, as far as they are known."""


@dataclass(frozen=True)
class DeltaSnapshot:
    """A table at one version."""

    handle: Any

    @property
    def version(self) -> int:
        """Return the version."""
        return int(self.handle.version())

    @cached_property
    def table_id(self) -> str:
        """Return what stays the same as long as the table is not made anew."""
        return str(self.handle.metadata().id)

    @cached_property
    def partition_by(self) -> tuple[str, ...]:
        """Return the columns of partitions."""
        return tuple(self.handle.metadata().partition_columns)

    @cached_property
    def schema(self) -> Any:
        """Return the Arrow schema."""
        import pyarrow as pa

        return pa.schema(self.handle.schema().to_arrow())

    def version_of(self, application: str) -> int | None:
        """Return what an application has committed last."""
        found = self.handle.transaction_version(application)
        return None if found is None else int(found)

    @cached_property
    def own_files(self) -> frozenset[str]:
        """Return the data files of all our sinks that the table has."""
        # Ours lie below the table, whose URI may be written in several ways.
        tails = (uri[uri.rfind("/statecheck-") + 1 :] for uri in self.handle.file_uris())
        return frozenset(tail for tail in tails if lineage_of_data_file(tail) is not None)


@dataclass(frozen=True, slots=True)
class DeltaTableAccess:
    """
    Reads and commits versions of a table.

    :param uri: The directory of the table.
    :param options: Those of deltalake.
    :param clock: Tells when a file became part of the table.
    """

    uri: str
    options: HiddenOptions
    clock: Clock = field(default_factory=SystemClock)

    @property
    def shown(self) -> str:
        """The URI, fit to be shown."""
        return redact(self.uri)

    def snapshot(self, version: int | None = None) -> DeltaSnapshot | None:
        """
        Return the table as it is now, or was; ``None`` if there is none.

        :raises StorageError: if the storage fails, or the version cannot be read any more.
        """
        library = deltalake()
        with self._failures_told("read"):
            try:
                return DeltaSnapshot(library.DeltaTable(self.uri, version=version, storage_options=self._options()))
            except library.exceptions.TableNotFoundError:
                return None

    def create(self, schema: Any, partition_by: Sequence[str], commit: DeltaCommit) -> bool:
        """
        Make the table with its first version.

        :param schema: Arrow schema.
        :return: Whether it was made; not if somebody else made it first.
        :raises StorageError: if the storage fails; the table may then be there nonetheless.
        """
        library = deltalake()

        def make() -> None:
            library.transaction.create_table_with_add_actions(
                self.uri,
                library.Schema.from_arrow(schema),
                self._additions(commit, partition_by),
                mode="error",
                partition_by=list(partition_by),
                storage_options=self._options(),
                commit_properties=self._properties(commit),
            )

        return self._won(make, lambda: self.snapshot() is None)

    def commit(self, snapshot: DeltaSnapshot, commit: DeltaCommit) -> bool:
        """
        Make the version that follows a snapshot.

        :return: Whether it was made; not if somebody else made it first, whatever theirs holds.
        :raises StorageError: if the storage fails; the version may then be there nonetheless.
        """

        def make() -> None:
            snapshot.handle.create_write_transaction(
                [*self._additions(commit, snapshot.partition_by), *self._removals(commit, snapshot.partition_by)],
                mode="append",
                schema=snapshot.handle.schema(),
                partition_by=list(snapshot.partition_by),
                commit_properties=self._properties(commit),
            )

        return self._won(make, lambda: self._is_newest(snapshot))

    def add_columns(self, snapshot: DeltaSnapshot, columns: Any, commit: DeltaCommit) -> bool:
        """
        Give the table columns in the version that follows a snapshot; files that are there have null in them.

        :param columns: Arrow schema of the new ones.
        :return: Whether it was made; not if somebody else made it first.
        :raises StorageError: if the storage fails.
        """
        fields = deltalake().Schema.from_arrow(columns).fields
        return self._won(
            lambda: snapshot.handle.alter.add_columns(fields, commit_properties=self._properties(commit)),
            lambda: self._is_newest(snapshot),
        )

    def _won(self, make: Callable[[], None], is_unchanged: Callable[[], bool]) -> bool:
        library = deltalake()
        with self._failures_told("commit"):
            try:
                make()
            except library.exceptions.DeltaError:
                # Either somebody was first, whose version is there now, or it failed for good.
                if is_unchanged():
                    raise
                return False
        return True

    def _is_newest(self, snapshot: DeltaSnapshot) -> bool:
        now = self.snapshot()
        return now is not None and now.version == snapshot.version

    def _properties(self, commit: DeltaCommit) -> Any:
        library = deltalake()
        # What was looked at before must still be so: another version in between is looked at anew, not passed over.
        return library.CommitProperties(
            custom_metadata={"statecheck": dict(commit.note)},
            max_commit_retries=0,
            app_transactions=[library.Transaction(name, version) for name, version in sorted(commit.versions.items())],
        )

    def _additions(self, commit: DeltaCommit, partition_by: Sequence[str]) -> list[Any]:
        library = deltalake()
        now = self._milliseconds()
        return [
            library.transaction.AddAction(
                path=file.name,
                size=file.size_bytes,
                partition_values=_partition(file.name, partition_by),
                modification_time=now,
                data_change=True,
                stats=file.statistics,
            )
            for file in commit.added
        ]

    def _removals(self, commit: DeltaCommit, partition_by: Sequence[str]) -> list[Any]:
        library = deltalake()
        now = self._milliseconds()
        return [
            library.transaction.RemoveAction(
                path=name,
                data_change=True,
                deletion_timestamp=now,
                size=size,
                partition_values=_partition(name, partition_by),
            )
            for name, size in sorted(commit.removed.items())
        ]

    def _milliseconds(self) -> int:
        return int(self.clock.now().timestamp() * 1000)

    def _options(self) -> dict[str, str] | None:
        return self.options.reveal() or None

    @contextmanager
    def _failures_told(self, what: str) -> Iterator[None]:
        try:
            yield
        except StateCheckError:
            raise
        except Exception as error:
            # deltalake adds a trace of its own code.
            said = conceal(str(error), self.options.reveal()).partition("\n")[0].rstrip(".")
            raise StorageError(f"Cannot {what} the Delta table {self.shown}: {said}.{advice(error)}") from harmless(
                error, self.options.reveal()
            )


def _partition(name: str, partition_by: Sequence[str]) -> dict[str, str | None]:
    found = partition_of("", name)
    return {column: found.get(column) for column in partition_by}
