"""
Delta tables: snapshots, the transaction log, commits, and types of columns.

Tables are read and committed with deltalake, without Spark.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self
from urllib.parse import unquote

from airflow_provider_statecheck.checkpoint.records import Clock, SystemClock
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.tables.data_files import WrittenFile
from airflow_provider_statecheck.spark.tables.partition_directories import partition_values
from airflow_provider_statecheck.spark.tables.schemas import storage_failures
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import harmless, redact, scheme_of

Action = Mapping[str, Any]
# What deltalake says of features that it does not know, and of tables whose versions a catalog decides.
_UNSUPPORTED = re.compile(
    r"(?<=Unsupported: )[^\n]+|[^\n:]*catalog-managed[^\n]*|Unsupported Delta table type: '[^']*'"
)
_UNSAFE_RENAME = "aws_s3_allow_unsafe_rename"
_S3_OPTIONS = {
    "key": "AWS_ACCESS_KEY_ID",
    "secret": "AWS_SECRET_ACCESS_KEY",
    "token": "AWS_SESSION_TOKEN",
    "endpoint_url": "AWS_ENDPOINT_URL",
    "region_name": "AWS_REGION",
}
_GCS_OPTIONS = {"token": "GOOGLE_SERVICE_ACCOUNT"}
_AZURE_OPTIONS = {
    "account_name": "AZURE_STORAGE_ACCOUNT_NAME",
    "account_key": "AZURE_STORAGE_ACCOUNT_KEY",
    "sas_token": "AZURE_STORAGE_SAS_TOKEN",
    "client_id": "AZURE_STORAGE_CLIENT_ID",
    "client_secret": "AZURE_STORAGE_CLIENT_SECRET",
    "tenant_id": "AZURE_STORAGE_TENANT_ID",
}
_OPTIONS_BY_SCHEME = {"s3": _S3_OPTIONS, "s3a": _S3_OPTIONS, "gs": _GCS_OPTIONS, "gcs": _GCS_OPTIONS} | dict.fromkeys(
    ("abfs", "abfss", "az"), _AZURE_OPTIONS
)


@dataclass(frozen=True, slots=True)
class DeltaTableAccess:
    """
    Reads and commits versions of a table.

    :param clock: Clock for the timestamps of added and removed files.
    """

    uri: str
    options: HiddenOptions
    clock: Clock = field(default_factory=SystemClock)

    @classmethod
    def of(cls, storage: CheckpointStorage, given: HiddenOptions | None) -> Self:
        """
        Return the access to the table in a directory.

        :param given: Options of deltalake; ``None`` to derive them from those of the storage.
        """
        return cls(storage.base_uri, given or HiddenOptions(library_options(storage.base_uri, storage.options)))

    @property
    def shown(self) -> str:
        """The URI of the table without credentials."""
        return redact(self.uri)

    def snapshot(self, version: int | None = None) -> DeltaSnapshot | None:
        """
        Return the table at a version, by default the newest one; ``None`` if the table does not exist.

        :raises UnsupportedStateError: if the table has a feature that deltalake does not read.
        :raises StorageError: if the storage fails, or the version is no longer retained.
        """
        library = deltalake()
        with self._redacted_failures("read"):
            try:
                return DeltaSnapshot(library.DeltaTable(self.uri, version=version, storage_options=self._options()))
            except library.exceptions.TableNotFoundError:
                return None
            except library.exceptions.DeltaError as error:
                found = _UNSUPPORTED.search(str(error))
                if found is None:
                    raise
                raise self._unsupported_error(found.group()) from harmless(error, self.options.reveal())

    def _unsupported_error(self, found: str) -> UnsupportedStateError:
        return UnsupportedStateError(
            f"Expected the Delta table {self.shown} to have features that deltalake {deltalake().__version__} reads, "
            f"found: {found.strip(' .')}. Install a newer version of deltalake, or read a copy of the table without "
            "the feature."
        )

    def create(self, schema: Any, partition_by: Sequence[str], commit: DeltaCommit) -> StorageError | None:
        """
        Create the table without files.

        :return: ``None`` if the table was created; an error if another writer created it first.
        :raises StorageError: if the storage fails; the table may exist nonetheless.
        """
        library = deltalake()

        def create_table() -> None:
            library.transaction.create_table_with_add_actions(
                self.uri,
                library.Schema.from_arrow(schema),
                [],
                mode="error",
                partition_by=list(partition_by),
                storage_options=self._options(),
                commit_properties=self._properties(commit),
            )

        return self._commit_once(create_table, None)

    def commit(self, snapshot: DeltaSnapshot, commit: DeltaCommit) -> StorageError | None:
        """
        Commit the version that follows a snapshot.

        :return: ``None`` if the version was committed; an error if another writer committed any version first.
        :raises StorageError: if the storage fails; the version may exist nonetheless.
        """

        def commit_version() -> None:
            snapshot.handle.create_write_transaction(
                [
                    *self._add_actions(commit, snapshot.partition_by),
                    *self._remove_actions(commit, snapshot.partition_by),
                ],
                mode="append",
                schema=snapshot.handle.schema(),
                partition_by=list(snapshot.partition_by),
                commit_properties=self._properties(commit),
            )

        return self._commit_once(commit_version, snapshot)

    def commit_with(
        self, snapshot: DeltaSnapshot, commit: DeltaCommit, write: Callable[[Any, Any], None]
    ) -> StorageError | None:
        """
        Commit the version that follows a snapshot by an operation of deltalake.

        :param commit: Application transactions and note; the operation decides which files change.
        :param write: Function that takes the table of deltalake and the properties of the commit.
        :return: ``None`` if the version was committed; an error if another writer committed any version first.
        :raises StorageError: if the operation or the storage fails; the version may exist nonetheless.
        """
        return self._commit_once(lambda: write(snapshot.handle, self._properties(commit)), snapshot)

    def add_columns(self, snapshot: DeltaSnapshot, columns: Any, commit: DeltaCommit) -> StorageError | None:
        """
        Add nullable columns in the version that follows a snapshot.

        :param columns: Arrow schema of the new columns.
        :return: ``None`` if the version was committed; an error if another writer committed any version first.
        :raises StorageError: if the storage fails.
        """
        fields = deltalake().Schema.from_arrow(columns).fields

        def add(handle: Any, properties: Any) -> None:
            handle.alter.add_columns(fields, commit_properties=properties)

        return self.commit_with(snapshot, commit, add)

    def _commit_once(self, commit_version: Callable[[], None], before: DeltaSnapshot | None) -> StorageError | None:
        library, version = deltalake(), _version_of(before)
        with self._redacted_failures("commit"):
            try:
                commit_version()
            except library.exceptions.DeltaError:
                # A changed table means that another writer committed first; otherwise the failure is permanent.
                if _version_of(self.snapshot()) == version:
                    raise
                return StorageError(
                    f"Expected the next version of the Delta table {self.shown} to be free, found one of another "
                    "writer; if this repeats, reduce the number of concurrent writers."
                )
        return None

    def _properties(self, commit: DeltaCommit) -> Any:
        library = deltalake()
        # No retries by deltalake: after a concurrent version, the caller must check the table again.
        return library.CommitProperties(
            custom_metadata={"statecheck": dict(commit.note)},
            max_commit_retries=0,
            app_transactions=[library.Transaction(name, version) for name, version in sorted(commit.versions.items())],
        )

    def _add_actions(self, commit: DeltaCommit, partition_by: Sequence[str]) -> list[Any]:
        library = deltalake()
        now = self._milliseconds()
        return [
            library.transaction.AddAction(
                path=file.name,
                size=file.size_bytes,
                partition_values=_partition_values(file.name, partition_by),
                modification_time=now,
                data_change=True,
                stats=file.statistics,
            )
            for file in commit.added
        ]

    def _remove_actions(self, commit: DeltaCommit, partition_by: Sequence[str]) -> list[Any]:
        library = deltalake()
        now = self._milliseconds()
        return [
            library.transaction.RemoveAction(
                path=name,
                data_change=True,
                deletion_timestamp=now,
                size=size,
                partition_values=_partition_values(name, partition_by),
            )
            for name, size in sorted(commit.removed.items())
        ]

    def _milliseconds(self) -> int:
        return int(self.clock.now().timestamp() * 1000)

    def _options(self) -> dict[str, str] | None:
        return self.options.reveal() or None

    def _redacted_failures(self, action: str) -> AbstractContextManager[None]:
        return storage_failures(f"Cannot {action} the Delta table {self.shown}", self.options.reveal())


@dataclass(frozen=True)
class DeltaSnapshot:
    """A table at one version."""

    handle: Any

    @property
    def version(self) -> int:
        """The version of the table."""
        return int(self.handle.version())

    @cached_property
    def table_id(self) -> str:
        """The id of the table, which changes if the table is recreated."""
        return str(self.handle.metadata().id)

    @cached_property
    def partition_by(self) -> tuple[str, ...]:
        """The partition columns."""
        return tuple(self.handle.metadata().partition_columns)

    @cached_property
    def schema(self) -> Any:
        """The Arrow schema."""
        return pa.schema(self.handle.schema().to_arrow())

    def version_of(self, application: str) -> int | None:
        """Return the version of an application id, ``None`` if there is none."""
        found = self.handle.transaction_version(application)
        return None if found is None else int(found)

    @cached_property
    def file_uris(self) -> tuple[str, ...]:
        """The URIs of the data files."""
        return tuple(self.handle.file_uris())

    @property
    def is_append_only(self) -> bool:
        """Whether rows of the table cannot be removed."""
        return bool(self.handle.metadata().configuration.get("delta.appendOnly") == "true")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCommit:
    """Changes of one version."""

    versions: Mapping[str, int] = field(default_factory=dict)
    """New versions of application ids."""
    note: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the version in the table history."""
    added: Sequence[WrittenFile] = ()
    """Files with statistics as JSON in the format of the transaction log."""
    removed: Mapping[str, int | None] = field(default_factory=dict)
    """Sizes of the removed files by name, ``None`` for unknown sizes."""


@dataclass(frozen=True, slots=True)
class DeltaLog:
    """Reads the transaction log through fsspec."""

    storage: CheckpointStorage

    def entry(self, version: int) -> LogEntry | None:
        """
        Return the actions of a version, ``None`` if its log file is no longer retained.

        :raises CorruptStateError: if the log file is damaged.
        :raises StorageError: if the storage fails.
        """
        uri = f"{self.storage.base_uri}/_delta_log/{version:020d}.json"
        try:
            # Only at line feeds: the texts of the log may contain other separators, such as U+2028.
            lines = self.storage.read_bytes(uri).split(b"\n")
            return LogEntry(version, tuple(json.loads(line) for line in lines if line.strip()))
        except CheckpointNotFoundError:
            return None
        except ValueError as error:
            raise CorruptStateError(
                f"Expected a version of a Delta table in {redact(uri)}, found other content; restore the file from a "
                "backup."
            ) from error

    def back_from(self, version: int) -> Iterator[LogEntry]:
        """Yield a version and the earlier ones, newest first, as far as their log files are retained."""
        for number in range(version, -1, -1):
            entry = self.entry(number)
            if entry is None:
                return
            yield entry


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Actions of one version of a table."""

    version: int
    actions: tuple[Action, ...]

    @property
    def added(self) -> dict[str, Action]:
        """The added files by their names relative to the table."""
        return self._files("add")

    @property
    def removed(self) -> dict[str, Action]:
        """The removed files by their names relative to the table."""
        return self._files("remove")

    def one(self, kind: str) -> Action | None:
        """Return the action of a kind that occurs at most once, ``None`` if it is missing."""
        return next((action[kind] for action in self.actions if kind in action), None)

    def _files(self, kind: str) -> dict[str, Action]:
        return {unquote(action[kind]["path"]): action[kind] for action in self.actions if kind in action}


def deltalake() -> Any:
    """
    Return the module ``deltalake``.

    :raises EnvironmentNotReadyError: if it is not installed.
    """
    try:
        import deltalake
    except ImportError as error:
        raise EnvironmentNotReadyError(
            "Expected the package deltalake for Delta tables, found none; install it where the Spark driver runs: "
            "pip install 'airflow-provider-statecheck[delta]'."
        ) from error
    return deltalake


def library_options(uri: str, options: Mapping[str, Any]) -> dict[str, str]:
    """
    Return the deltalake options for the options of a filesystem.

    Other options are omitted; deltalake reads missing credentials from the environment.
    """
    names = _OPTIONS_BY_SCHEME.get(scheme_of(uri), {})
    flat = (
        {**options, **options.get("client_kwargs", {})} if isinstance(options.get("client_kwargs"), dict) else options
    )
    found = {names[name]: str(value) for name, value in flat.items() if name in names and isinstance(value, str)}
    if found.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        found["AWS_ALLOW_HTTP"] = "true"
    if options.get("anon") is True and names is _S3_OPTIONS:
        found["AWS_SKIP_SIGNATURE"] = "true"
    return found


def require_safe_commits(options: Mapping[str, Any]) -> None:
    """
    Require a configuration with atomic commits.

    :raises InvalidConfigurationError: if unsafe renames are enabled.
    """
    values = {name.lower(): value for name, value in (*os.environ.items(), *options.items())}
    found = values.get(_UNSAFE_RENAME, values.get(_UNSAFE_RENAME.removeprefix("aws_s3_"), "false"))
    if str(found).lower() in ("true", "1", "yes", "on", "y", "t"):
        raise InvalidConfigurationError(
            f"Expected atomic commits, found {_UNSAFE_RENAME.upper()}, with which two writers can overwrite each "
            "other's versions; remove it."
        )


def _partition_values(name: str, partition_by: Sequence[str]) -> dict[str, str | None]:
    found = partition_values("", name)
    return {column: found.get(column) for column in partition_by}


def _version_of(snapshot: DeltaSnapshot | None) -> int | None:
    return None if snapshot is None else snapshot.version
