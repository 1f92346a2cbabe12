"""
Live snapshots of a stage, and detection of damaged ones.

Spark reports a damaged file and an unavailable storage by the same error. A file is therefore read again before its
snapshot counts as damaged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from airflow_provider_statecheck.checkpoint.ids import DATA_DIRECTORY, MANIFEST_FILE
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.exceptions import StateCheckError, StorageError, errors_before, text_of
from airflow_provider_statecheck.spark.restore import RestoredStage
from airflow_provider_statecheck.spark.snapshots.dataframes import StoredDataFrames, StoredSnapshot, last_part
from airflow_provider_statecheck.state.progress import NamedSnapshot, Scope, StepKey, describe
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import UNREADABLE, SnapshotHandle
from airflow_provider_statecheck.storage.snapshot_manifest import (
    SnapshotFile,
    SnapshotManifest,
    read_batches,
    verify_footer,
)
from airflow_provider_statecheck.storage.uris import redact
from airflow_provider_statecheck.storage.views.checkpoint_storages import OperatorDirectories
from airflow_provider_statecheck.storage.views.state_streams import write_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


log = logging.getLogger(__name__)

# Spark's errors for damage that Arrow does not detect: in page headers, or found by Hadoop's own checksums.
_UNDECODABLE = re.compile(r"ParquetDecodingException|can not read class org\.apache\.parquet\.format|ChecksumException")
# Spark 3.5 does not name the file whose page has another checksum.
_UNNAMED = re.compile(r"CRC checksum verification failed")


Stopwatch = Callable[[], float]
"""Function that returns the seconds since its start."""

_WHOLE = 0
"""Number of a snapshot that is not a part."""
_Place = tuple[Scope, str, int]
"""Scope and name of a step, and the number of a part."""


@dataclass(frozen=True, slots=True)
class LiveSnapshot:
    """A snapshot that the next checkpoint references."""

    handle: SnapshotHandle
    manifest: SnapshotManifest

    @property
    def stored(self) -> StoredSnapshot:
        """The files of the snapshot."""
        return StoredSnapshot(self.handle.uri, self.manifest)

    @property
    def identity(self) -> str:
        """The identity of the snapshot in the fingerprints of dependent steps."""
        return self.handle.fingerprint + self.handle.lineage


class StageSnapshots:
    """
    Live snapshots of one attempt.

    :param restored: The restored checkpoint, ``None`` if the attempt started from the beginning.
    """

    def __init__(self, storage: CheckpointStorage, attempt: AttemptRef, restored: RestoredStage | None) -> None:
        self.storage = storage
        self.frames = StoredDataFrames(storage)
        self._attempt = attempt
        self._directories = OperatorDirectories(storage, attempt)
        self._live: dict[_Place, LiveSnapshot] = {}
        self._has_borrowed = restored is not None and restored.checkpoint.properties.unclaimed
        self.handed_out: set[str] = set()
        """URIs of snapshots that plans of this attempt may read; they are pinned until it ends."""
        self._damaged: set[StepKey] = set()
        self._read_by_frames: WeakKeyDictionary[Any, dict[int, StoredSnapshot]] = WeakKeyDictionary()
        if restored is not None:
            self._adopt(restored)

    @property
    def handles(self) -> tuple[SnapshotHandle, ...]:
        """The handles of the live snapshots in a fixed order."""
        return tuple(self._live[place].handle for place in sorted(self._live))

    @property
    def pinned(self) -> frozenset[str]:
        """The URIs of snapshots that must not be deleted while the attempt is open."""
        return frozenset(self.handed_out) | {live.handle.uri for live in self._live.values()}

    def fingerprints(self) -> Mapping[str, str]:
        """Return the identities of the live snapshots by the URIs that plans read."""
        return {live.stored.data_uri: live.identity for live in self._live.values()}

    def identity(self, step: StepKey) -> str:
        """Return the identities of a step's live snapshots; empty if there are none."""
        return "\n".join(sorted({live.identity for place, live in self._live.items() if place[:2] == step}))

    def damage_behind(self, error: BaseException) -> dict[str, str]:
        """Return the problems of damaged live snapshots that an error refers to, by the URIs of the snapshots."""
        return find_damage(error, self.storage, (live.stored for live in self._live.values()))

    def find(self, step: StepKey) -> LiveSnapshot | None:
        """Return the live snapshot of a step that is not computed in parts."""
        return self._live.get((*step, _WHOLE))

    def parts(self, step: StepKey) -> dict[int, LiveSnapshot]:
        """Return the live parts of a step by their numbers; none for a step that is not computed in parts."""
        found = {place[2]: live for place, live in self._live.items() if place[:2] == step and place[2] != _WHOLE}
        return dict(sorted(found.items()))

    def read_by(self, frame: DataFrame) -> Mapping[int, StoredSnapshot] | None:
        """
        Return the snapshot that a DataFrame reads, or its parts by their numbers.

        ``None`` for any other DataFrame.
        """
        return self._read_by_frames.get(frame)

    def write(self, step: StepKey, frame: DataFrame, fingerprint: str, seconds_so_far: Stopwatch) -> LiveSnapshot:
        """
        Write a DataFrame and make it the live snapshot of a step.

        :param seconds_so_far: Stopwatch that was started before the step was computed.
        :raises UnsupportedStateError: for a DataFrame that cannot be restored unchanged.
        :raises StorageError: if the manifest cannot be written.
        """
        live = self._write((*step, _WHOLE), frame, fingerprint, seconds_so_far)
        self.drop(step)
        self._live[(*step, _WHOLE)] = live
        self._damaged.discard(step)
        return live

    def write_part(self, step: StepKey, part: int, frame: DataFrame, fingerprint: str) -> LiveSnapshot:
        """
        Write a part of a step, which is not live before :meth:`add_part`; may be called from any thread.

        :raises UnsupportedStateError: for a DataFrame that cannot be restored unchanged.
        :raises StorageError: if the manifest cannot be written.
        """
        return self._write((*step, part), frame, fingerprint, lambda: 0.0)

    def add_part(self, live: LiveSnapshot, seconds: float) -> LiveSnapshot:
        """
        Make a written part live.

        :param seconds: Time of the step that the part took.
        """
        handle = replace(live.handle, seconds=round(seconds, 3))
        self._live.pop((handle.scope, handle.name, _WHOLE), None)
        added = self._live[(handle.scope, handle.name, handle.part)] = replace(live, handle=handle)
        return added

    def complete_parts(self, step: StepKey) -> None:
        """Mark all live parts of a step as the whole step."""
        parts = self.parts(step)
        newest = max((live.handle for live in parts.values()), key=lambda handle: (handle.epoch, handle.part))
        for part, live in parts.items():
            # What was built on other parts may not fit these.
            handle = replace(live.handle, of_parts=len(parts), lineage=last_part(newest.uri))
            self._live[(*step, part)] = replace(live, handle=handle)
        self._damaged.discard(step)

    def drop(self, step: StepKey) -> None:
        """Drop the snapshot of a step and its parts; the next checkpoint does not reference them."""
        self._keep(lambda place: place[:2] != step)

    def keep_parts(self, step: StepKey, numbers: Collection[int]) -> None:
        """Drop all parts of a step but the given ones."""
        self._keep(lambda place: place[:2] != step or place[2] == _WHOLE or place[2] in numbers)

    def read(self, spark: SparkSession, live: LiveSnapshot) -> DataFrame:
        """Return a DataFrame that reads a snapshot."""
        return self._hand_out(spark, {_WHOLE: live.stored})

    def read_parts(self, spark: SparkSession, step: StepKey) -> DataFrame:
        """Return a DataFrame that reads all live parts of a step, at least one."""
        return self._hand_out(spark, {number: live.stored for number, live in self.parts(step).items()})

    def _hand_out(self, spark: SparkSession, parts: dict[int, StoredSnapshot]) -> DataFrame:
        frame = self.frames.read(spark, list(parts.values()))
        self.handed_out.update(stored.uri for stored in parts.values())
        self._read_by_frames[frame] = parts
        return frame

    def copy_borrowed(self) -> int:
        """
        Copy the snapshots of a restored savepoint that this job has not claimed; its owner may delete them.

        :return: Number of copied bytes.
        :raises StorageError: if one cannot be copied; the next call continues with it.
        """
        if not self._has_borrowed:
            return 0
        borrowed = [place for place, live in self._live.items() if not self._directories.owns(live.handle.uri)]
        copied = sum(self._copy(place) for place in borrowed)
        self._has_borrowed = False
        return copied

    def drop_scope(self, scope: Scope) -> None:
        """Drop the snapshots inside a finished item; the next checkpoint does not reference them."""
        self._keep(lambda place: place[0][: len(scope)] != scope)

    def drop_unless_used(self) -> None:
        """Drop restored snapshots that this attempt did not use."""
        self._keep(lambda place: self._live[place].handle.uri in self.handed_out)

    def _adopt(self, restored: RestoredStage) -> None:
        for handle in restored.document.snapshots:
            manifest = restored.manifests.get(handle.uri)
            if manifest is not None:
                self._live[(handle.scope, handle.name, handle.part)] = LiveSnapshot(handle, manifest)
        self._damaged = {(handle.scope, handle.name) for handle in restored.damaged}
        # An earlier attempt may have found the damage, and ended before it replaced all damaged parts.
        self._damaged |= {place[:2] for place in self._live if self._has_lost_parts(place)}
        for handle in sorted(restored.damaged, key=lambda handle: (handle.scope, handle.name, handle.part)):
            what, name = f"part {handle.part}" if handle.part else "the step", describe((handle.scope, handle.name))
            log.warning("The snapshot of step %s is damaged; %s is recomputed.", name, what)
        # Steps inside a loop depend on the loop's snapshot.
        self._keep(lambda place: not any(_is_inside(place[:2], loop) for loop in self._damaged))

    def _has_lost_parts(self, place: _Place) -> bool:
        if not self._live[place].handle.of_parts:
            return False
        parts = NamedSnapshot(tuple(live.handle for live in self.parts(place[:2]).values()))
        return not parts.is_complete

    def _copy(self, place: _Place) -> int:
        live, uri = self._live[place], self._new_uri(place[:2])
        self.storage.copy_directory(live.handle.uri, uri, size_bytes=live.handle.size_bytes)
        self._live[place] = replace(live, handle=replace(live.handle, uri=uri, epoch=self._attempt.epoch))
        return live.handle.size_bytes

    def _keep(self, wanted: Callable[[_Place], bool]) -> None:
        self._live = {place: live for place, live in self._live.items() if wanted(place)}

    def _new_uri(self, step: StepKey) -> str:
        scope, name = step
        return self._directories.new_snapshot_uri(name, scope)

    def _write(self, place: _Place, frame: DataFrame, fingerprint: str, seconds_so_far: Stopwatch) -> LiveSnapshot:
        uri = self._new_uri(place[:2])
        try:
            return self._write_to(uri, place, frame, fingerprint, seconds_so_far)
        except Exception:
            _delete_quietly(self.storage, uri)
            raise

    def _write_to(
        self, uri: str, place: _Place, frame: DataFrame, fingerprint: str, seconds_so_far: Stopwatch
    ) -> LiveSnapshot:
        manifest = self.frames.write(frame, f"{uri}/{DATA_DIRECTORY}")
        # The manifest makes the snapshot complete.
        file = write_file(self.storage, f"{uri}/{MANIFEST_FILE}", manifest.encode())
        handle = SnapshotHandle(
            name=place[1],
            scope=place[0],
            uri=uri,
            manifest_size=file.size,
            manifest_sha256=file.sha256,
            size_bytes=file.size + manifest.size_bytes,
            rows=manifest.rows,
            files=len(manifest.files),
            fingerprint=fingerprint,
            epoch=self._attempt.epoch,
            seconds=round(seconds_so_far(), 3),
            created_at=datetime.now(UTC),
            # What was built on an earlier snapshot may not fit this one, even if both are of the same code.
            lineage=last_part(uri) if place[:2] in self._damaged or place in self._live else "",
            part=place[2],
        )
        return LiveSnapshot(handle, manifest)


def _delete_quietly(storage: CheckpointStorage, uri: str) -> None:
    try:
        storage.delete_directory(uri)
    except StateCheckError as error:
        # This error must not hide the one of the write.
        log.warning("Partial snapshot %s could not be deleted; garbage collection deletes it: %s", redact(uri), error)


def _is_inside(step: StepKey, loop: StepKey) -> bool:
    scope, name = loop
    return step[0][: len(scope)] == scope and [item[0] for item in step[0][len(scope) :][:1]] == [name]


def find_damage(
    error: BaseException, storage: CheckpointStorage, snapshots: Iterable[StoredSnapshot]
) -> dict[str, str]:
    """
    Return the problems of damaged snapshots that an error refers to, by the URIs of the snapshots.

    :param error: Error that ended the stage; its causes are searched too.
    :param snapshots: Snapshots that the stage may have read.
    """
    text = "\n".join(map(text_of, errors_before(error)))
    stored = list(snapshots)
    suspected = [(snapshot, file) for snapshot in stored if (file := snapshot.file_in(text)) is not None]
    if not suspected and _UNNAMED.search(text):
        suspected = [(snapshot, file) for snapshot in stored for file in snapshot.manifest.files]
    is_undecodable = _UNDECODABLE.search(text) is not None
    damaged: dict[str, str] = {}
    for snapshot, file in suspected:
        if problem := _problem_of(storage, snapshot.uri_of(file), file, is_undecodable):
            damaged[snapshot.uri] = problem
    return damaged


def _problem_of(storage: CheckpointStorage, uri: str, file: SnapshotFile, is_undecodable: bool) -> str:
    try:
        verify_footer(storage, uri, file)
        for _ in read_batches(storage, uri, file):
            pass  # reading verifies the checksums
    except UNREADABLE as problem:
        return str(problem)
    except (StorageError, NotImplementedError) as error:
        log.warning("File %s could not be checked for damage: %s", redact(uri), error)
    return f"Spark cannot decode {redact(uri)}." if is_undecodable else ""
