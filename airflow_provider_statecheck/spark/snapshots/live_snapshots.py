"""
Live snapshots of a stage, and detection of damaged ones.

Spark reports a damaged file and an unavailable storage by the same error. A file is therefore read again before its
snapshot counts as damaged.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.layout import DATA_DIRECTORY, MANIFEST_FILE, epoch_name, shared_uri, slug
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.exceptions import StateCheckError, StorageError
from airflow_provider_statecheck.spark.restore import RestoredStage
from airflow_provider_statecheck.spark.snapshots.dataframes import StoredDataFrames
from airflow_provider_statecheck.state.loop_progress import Scope, StepKey, describe
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import UNREADABLE, SnapshotHandle
from airflow_provider_statecheck.storage.snapshot_manifest import SnapshotFile, SnapshotManifest, verify_footer
from airflow_provider_statecheck.storage.snapshot_pages import read_pages
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


log = logging.getLogger(__name__)

# Spark's errors for damage that Arrow does not detect: in page headers, or found by Hadoop's own checksums.
_UNDECODABLE = re.compile(r"ParquetDecodingException|can not read class org\.apache\.parquet\.format|ChecksumException")


Stopwatch = Callable[[], float]
"""Function that returns the seconds since its start."""


@dataclass(frozen=True, slots=True)
class LiveSnapshot:
    """A snapshot that the next checkpoint references."""

    handle: SnapshotHandle
    manifest: SnapshotManifest

    @property
    def data_uri(self) -> str:
        """Return the URI of the directory of the Parquet files."""
        return f"{self.handle.uri}/{DATA_DIRECTORY}"

    @property
    def identity(self) -> str:
        """Return the identity of the snapshot in the fingerprints of dependent steps."""
        return self.handle.fingerprint + self.handle.lineage


class StageSnapshots:
    """
    Live snapshots of one attempt.

    :param storage: Checkpoint storage.
    :param attempt: The attempt that writes snapshots.
    :param restored: The restored checkpoint, ``None`` if the attempt started from the beginning.
    """

    def __init__(self, storage: CheckpointStorage, attempt: AttemptRef, restored: RestoredStage | None) -> None:
        self._storage = storage
        self._frames = StoredDataFrames(storage)
        self._attempt = attempt
        self._live: dict[StepKey, LiveSnapshot] = {}
        self._has_borrowed = restored is not None and restored.checkpoint.properties.unclaimed
        self.handed_out: set[str] = set()
        """URIs of snapshots that plans of this attempt may read; they are pinned until it ends."""
        self._damaged: set[StepKey] = set()
        if restored is not None:
            self._adopt(restored)

    @property
    def handles(self) -> tuple[SnapshotHandle, ...]:
        """Return the handles of the live snapshots in a fixed order."""
        return tuple(self._live[step].handle for step in sorted(self._live))

    @property
    def pinned(self) -> frozenset[str]:
        """Return the URIs of snapshots that must not be deleted while the attempt is open."""
        return frozenset(self.handed_out) | {live.handle.uri for live in self._live.values()}

    def fingerprints(self) -> Mapping[str, str]:
        """Return the identities of the live snapshots by the URIs that plans read."""
        return {live.data_uri: live.identity for live in self._live.values()}

    def damage_behind(self, error: BaseException) -> dict[str, str]:
        """Return the problems of damaged live snapshots that an error refers to, by the URIs of the snapshots."""
        live = (StoredSnapshot(live.handle.uri, live.manifest) for live in self._live.values())
        return find_damage(error, self._storage, live)

    def find(self, step: StepKey) -> LiveSnapshot | None:
        """Return the live snapshot of a step."""
        return self._live.get(step)

    def write(self, step: StepKey, frame: DataFrame, fingerprint: str, seconds_so_far: Stopwatch) -> LiveSnapshot:
        """
        Write a DataFrame and make it the live snapshot of a step.

        :param seconds_so_far: Stopwatch that was started before the step was computed.
        :raises UnsupportedStateError: for a DataFrame that cannot be restored unchanged.
        :raises StorageError: if the manifest cannot be written.
        """
        uri = self._new_uri(step)
        try:
            live = self._write(uri, step, frame, fingerprint, seconds_so_far)
        except Exception:
            self._delete_quietly(uri)
            raise
        self._live[step] = live
        self._damaged.discard(step)
        return live

    def read(self, spark: SparkSession, live: LiveSnapshot) -> DataFrame:
        """Return a DataFrame that reads a snapshot."""
        self.handed_out.add(live.handle.uri)
        return self._frames.read(spark, live.data_uri, live.manifest)

    def copy_borrowed(self) -> int:
        """
        Copy the snapshots of a restored savepoint that this job has not claimed; its owner may delete them.

        :return: Number of copied bytes.
        :raises StorageError: if one cannot be copied; the next call continues with it.
        """
        if not self._has_borrowed:
            return 0
        borrowed = [step for step, live in self._live.items() if not self._is_own(live.handle.uri)]
        copied = sum(self._copy(step) for step in borrowed)
        self._has_borrowed = False
        return copied

    def drop_scope(self, scope: Scope) -> None:
        """Drop the snapshots inside a finished item; the next checkpoint does not reference them."""
        self._keep(lambda step: step[0][: len(scope)] != scope)

    def drop_unless_used(self) -> None:
        """Drop restored snapshots that this attempt did not use."""
        self._keep(lambda step: self._live[step].handle.uri in self.handed_out)

    def _adopt(self, restored: RestoredStage) -> None:
        for handle in restored.document.snapshots:
            manifest = restored.manifests.get(handle.uri)
            if manifest is not None:
                self._live[(handle.scope, handle.name)] = LiveSnapshot(handle, manifest)
        self._damaged = {(handle.scope, handle.name) for handle in restored.damaged}
        for step in sorted(self._damaged):
            log.warning("The snapshot of step %s is damaged; the step is recomputed.", describe(step))
        # Steps inside a loop depend on the loop's snapshot.
        self._keep(lambda step: not any(_is_inside(step, loop) for loop in self._damaged))

    def _is_own(self, uri: str) -> bool:
        return f"/{self._attempt.job_id}/shared/{self._attempt.operator_id}/" in uri

    def _copy(self, step: StepKey) -> int:
        live, uri = self._live[step], self._new_uri(step)
        self._storage.copy_directory(live.handle.uri, uri, size_bytes=live.handle.size_bytes)
        self._live[step] = replace(live, handle=replace(live.handle, uri=uri, epoch=self._attempt.epoch))
        return live.handle.size_bytes

    def _keep(self, wanted: Callable[[StepKey], bool]) -> None:
        self._live = {step: live for step, live in self._live.items() if wanted(step)}

    def _new_uri(self, step: StepKey) -> str:
        scope, name = step
        root = shared_uri(self._storage.base_uri, self._attempt.job_id, self._attempt.operator_id)
        return f"{root}/{slug(name, scope)}/{epoch_name(self._attempt.epoch)}"

    def _write(
        self, uri: str, step: StepKey, frame: DataFrame, fingerprint: str, seconds_so_far: Stopwatch
    ) -> LiveSnapshot:
        data_uri = f"{uri}/{DATA_DIRECTORY}"
        manifest = self._frames.write(frame, data_uri)
        data = manifest.encode()
        before = self._live.get(step)
        self._storage.write_bytes(f"{uri}/{MANIFEST_FILE}", data)
        handle = SnapshotHandle(
            name=step[1],
            scope=step[0],
            uri=uri,
            manifest_size=len(data),
            manifest_sha256=hashlib.sha256(data).hexdigest(),
            size_bytes=len(data) + manifest.size_bytes,
            rows=manifest.rows,
            files=len(manifest.files),
            fingerprint=fingerprint,
            epoch=self._attempt.epoch,
            seconds=round(seconds_so_far(), 3),
            created_at=datetime.now(UTC).isoformat(),
            lineage=_last_part(uri) if step in self._damaged else before.handle.lineage if before else "",
        )
        return LiveSnapshot(handle, manifest)

    def _delete_quietly(self, uri: str) -> None:
        try:
            self._storage.delete_directory(uri)
        except StateCheckError as error:
            # This error must not hide the one of the write.
            log.warning(
                "Partial snapshot %s could not be deleted; garbage collection deletes it: %s", redact(uri), error
            )


def _is_inside(step: StepKey, loop: StepKey) -> bool:
    scope, name = loop
    return step[0][: len(scope)] == scope and [item[0] for item in step[0][len(scope) :][:1]] == [name]


def _last_part(uri: str) -> str:
    return uri.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot on storage."""

    uri: str
    manifest: SnapshotManifest

    def uri_of(self, file: SnapshotFile) -> str:
        """Return the URI of a file."""
        return f"{self.uri}/{DATA_DIRECTORY}/{file.name}"

    def file_in(self, text: str) -> SnapshotFile | None:
        """Return the file that a text refers to, ``None`` if there is none."""
        # The name of the directory is unique. The path before it may differ, because Hadoop has other URI schemes.
        directory = f"{_last_part(self.uri)}/{DATA_DIRECTORY}/"
        if directory not in text:
            return None
        return next((file for file in self.manifest.files if f"{directory}{file.name}" in text), None)


def find_damage(
    error: BaseException, storage: CheckpointStorage, snapshots: Iterable[StoredSnapshot]
) -> dict[str, str]:
    """
    Return the problems of damaged snapshots that an error refers to, by the URIs of the snapshots.

    :param error: Error that ended the stage; its causes are searched too.
    :param storage: Checkpoint storage.
    :param snapshots: Snapshots that the stage may have read.
    """
    text = "\n".join(_texts(error))
    mentioned = ((snapshot, snapshot.file_in(text)) for snapshot in snapshots)
    is_undecodable = _UNDECODABLE.search(text) is not None
    damaged: dict[str, str] = {}
    for snapshot, file in mentioned:
        if file is not None and (problem := _problem_of(storage, snapshot.uri_of(file), file, is_undecodable)):
            damaged[snapshot.uri] = problem
    return damaged


def _texts(error: BaseException | None) -> Iterator[str]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield _text(error)
        error = error.__cause__ or error.__context__


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as unreachable:
        # The text of a Java error is fetched from the JVM, which may have died.
        return str(unreachable)


def _problem_of(storage: CheckpointStorage, uri: str, file: SnapshotFile, is_undecodable: bool) -> str:
    try:
        verify_footer(storage, uri, file)
        read_pages(storage, uri, file)
    except UNREADABLE as problem:
        return str(problem)
    except (StorageError, NotImplementedError) as error:
        log.warning("File %s could not be checked for damage: %s", redact(uri), error)
    return f"Spark cannot decode {redact(uri)}." if is_undecodable else ""
