"""A Delta table at one version, its log, and the next commit."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeVar
from urllib.parse import unquote

from typing_extensions import override

from airflow_provider_statecheck.checkpoint.clock import Clock, SystemClock
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CoordinatorError,
    CorruptStateError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.spark.sinks.sink import TaskCommittable
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles, lineage_directory
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.sources.file_listing import partition_values
from airflow_provider_statecheck.storage.failures import advice
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.schemes import conceal, harmless
from airflow_provider_statecheck.storage.uris import redact, scheme_of

Action = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What one version changed."""

    version: int
    actions: tuple[Action, ...]

    @property
    def added(self) -> dict[str, Action]:
        """Return the files that came, by their names relative to the table."""
        return self._files("add")

    @property
    def removed(self) -> dict[str, Action]:
        """Return the files that went."""
        return self._files("remove")

    def one(self, kind: str) -> Action | None:
        """Return the action of a kind of which there is at most one."""
        return next((action[kind] for action in self.actions if kind in action), None)

    def _files(self, kind: str) -> dict[str, Action]:
        return {unquote(action[kind]["path"]): action[kind] for action in self.actions if kind in action}


@dataclass(frozen=True, slots=True)
class DeltaLog:
    """Reads versions of a log through fsspec."""

    storage: CheckpointStorage

    def entry(self, version: int) -> LogEntry | None:
        """
        Return what a version changed; ``None`` if its file is not kept any more.

        :raises CorruptStateError: if the file is damaged.
        :raises StorageError: if the storage fails.
        """
        uri = f"{self.storage.base_uri}/_delta_log/{version:020d}.json"
        try:
            lines = self.storage.read_bytes(uri).decode().splitlines()
            return LogEntry(version, tuple(json.loads(line) for line in lines if line.strip()))
        except CheckpointNotFoundError:
            return None
        except ValueError as error:
            raise CorruptStateError(
                f"Expected a version of a Delta table in {redact(uri)}, found something else; restore the file."
            ) from error

    def back_from(self, version: int) -> Iterator[LogEntry]:
        """Give a version and those before it, as far as they are kept."""
        for number in range(version, -1, -1):
            entry = self.entry(number)
            if entry is None:
                return
            yield entry


_UNSAFE_RENAME = "aws_s3_allow_unsafe_rename"
_OF_S3 = {
    "key": "AWS_ACCESS_KEY_ID",
    "secret": "AWS_SECRET_ACCESS_KEY",
    "token": "AWS_SESSION_TOKEN",
    "endpoint_url": "AWS_ENDPOINT_URL",
    "region_name": "AWS_REGION",
}
_OF_GCS = {"token": "GOOGLE_SERVICE_ACCOUNT"}
_OF_AZURE = {
    "account_name": "AZURE_STORAGE_ACCOUNT_NAME",
    "account_key": "AZURE_STORAGE_ACCOUNT_KEY",
    "sas_token": "AZURE_STORAGE_SAS_TOKEN",
    "client_id": "AZURE_STORAGE_CLIENT_ID",
    "client_secret": "AZURE_STORAGE_CLIENT_SECRET",
    "tenant_id": "AZURE_STORAGE_TENANT_ID",
}
_NAMES = {"s3": _OF_S3, "s3a": _OF_S3, "gs": _OF_GCS, "gcs": _OF_GCS} | dict.fromkeys(
    ("abfs", "abfss", "az"), _OF_AZURE
)


def deltalake() -> Any:
    """
    Return the package.

    :raises EnvironmentNotReadyError: if it is not installed.
    """
    try:
        import deltalake
    except ImportError as error:
        raise EnvironmentNotReadyError(
            "Expected the package deltalake for Delta tables, found none; install it where the driver of Spark runs: "
            "pip install 'airflow-provider-statecheck[delta]'."
        ) from error
    return deltalake


def library_options(uri: str, options: Mapping[str, Any]) -> dict[str, str]:
    """
    Return the options of a filesystem as deltalake names them.

    What it has no name for is left out: it finds credentials in the environment by itself.
    """
    names = _NAMES.get(scheme_of(uri), {})
    flat = (
        {**options, **options.get("client_kwargs", {})} if isinstance(options.get("client_kwargs"), dict) else options
    )
    found = {names[name]: str(value) for name, value in flat.items() if name in names and isinstance(value, str)}
    if found.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        found["AWS_ALLOW_HTTP"] = "true"
    if options.get("anon") is True and names is _OF_S3:
        found["AWS_SKIP_SIGNATURE"] = "true"
    return found


def require_safe_commits(options: Mapping[str, Any]) -> None:
    """
    Refuse a setting by which two writers may both believe that they made the same version of a table.

    :raises InvalidConfigurationError: if it is set.
    """
    values = {name.lower(): value for name, value in (*os.environ.items(), *options.items())}
    found = values.get(_UNSAFE_RENAME, values.get(_UNSAFE_RENAME.removeprefix("aws_s3_"), "false"))
    if str(found).lower() in ("true", "1", "yes", "on", "y", "t"):
        raise InvalidConfigurationError(
            f"Expected commits that only one writer can win, found {_UNSAFE_RENAME.upper()}, with which two writers overwrite "
            "each other's; remove it."
        )


_OURS = re.compile(r"statecheck-([0-9a-f]{12})/(?:.*/)?g(\d+)-e(\d+)-\d+-[0-9a-f]{32}\.parquet", re.DOTALL)


def data_directory(lineage: str) -> str:
    """Return where the data files of a lineage lie; readers of Delta tables look into it, hidden ones they pass over."""
    return f"statecheck-{lineage}"


def data_file(lineage: str, directory: str, generation: int, epoch: int, subtask: int, key: str) -> str:
    """
    Return the name of a data file, which it keeps.

    :param directory: The partition of its rows.
    :param key: 32 hex characters that nobody else uses.
    """
    name = f"g{generation}-e{epoch}-{subtask}-{key}.parquet"
    return "/".join(part for part in (data_directory(lineage), directory, name) if part)


def lineage_of_data_file(name: str) -> str | None:
    """Return whose data file a name is, ``None`` if no sink of ours wrote it."""
    match = _OURS.fullmatch(name)
    return match.group(1) if match else None


def generation_of_data_file(name: str) -> int:
    """Return the generation of an own data file."""
    return _number(name, 2)


def epoch_of_data_file(name: str) -> int:
    """Return which attempt wrote an own data file."""
    return _number(name, 3)


def head_of(lineage: str) -> str:
    """Return the application whose version is the epoch of the newest attempt."""
    return f"statecheck-{lineage}"


def generation_key(lineage: str, generation: int) -> str:
    """Return the application whose version is the newest checkpoint that a generation has committed."""
    return f"statecheck-{lineage}-g{generation}"


def end_of(lineage: str) -> str:
    """Return the application whose version is the attempt that succeeded last without a checkpoint of its own."""
    return f"statecheck-{lineage}-end"


def _number(name: str, group: int) -> int:
    match = _OURS.fullmatch(name)
    return int(match.group(group)) if match else 0


class DeltaFiles(TargetFiles):
    """Data files that a lineage wrote, and its ledger; never the log of the table."""

    __slots__ = ()

    @override
    def _require_ours(self, name: str) -> None:
        is_plain = not {"", ".", ".."} & set(name.split("/"))
        is_ours = name.startswith(f"{lineage_directory(self.lineage)}/") or lineage_of_data_file(name) == self.lineage
        if not is_plain or not is_ours:
            raise CoordinatorError(
                f"Expected a file of lineage {self.lineage} in the table {self.target}, found {name!r}; nothing was changed."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaFile:
    """A complete Parquet file in the directory of a table, which its log does not name yet."""

    name: str
    """Relative to the table."""
    size_bytes: int
    rows: int
    footer_sha256: str
    statistics: str
    """As the log of a table has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCommittable(TaskCommittable):
    """All files of one task."""

    KIND: ClassVar[str] = "a committable of a Delta sink"

    schema: str
    """Arrow schema as text, with the columns of partitions."""
    files: tuple[DeltaFile, ...]

    @classmethod
    def _output(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        return {"schema": str(document["schema"]), "files": tuple(_file(file) for file in document["files"])}


def _file(document: Mapping[str, Any]) -> DeltaFile:
    return DeltaFile(
        name=str(document["name"]),
        size_bytes=int(document["size_bytes"]),
        rows=int(document["rows"]),
        footer_sha256=str(document["footer_sha256"]),
        statistics=str(document["statistics"]),
    )


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
        with self._redacted_failures("read"):
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
        with self._redacted_failures("commit"):
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
    def _redacted_failures(self, what: str) -> Iterator[None]:
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
    found = partition_values("", name)
    return {column: found.get(column) for column in partition_by}
