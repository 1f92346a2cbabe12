"""Measured costs of checkpointing over all attempts of a stage, the budget, and free space."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.checkpoint.codec import decode, require
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.exceptions import StateCheckError, StorageError, causes_of
from airflow_provider_statecheck.state.progress import RecordsByStep, StepKey, decoded_step, encoded_step, rows_in
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.stored_json import decoding
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)


class StageCosts:
    """
    Measures the share of checkpointing in the time of a stage, over all attempts.

    :param overhead_budget: Largest share of checkpointing, above 0 and up to 1; ``None`` for no limit.
    :param encoded: Return value of :meth:`encode` in an earlier attempt.
    :raises InvalidConfigurationError: for a budget out of range.
    """

    def __init__(self, overhead_budget: float | None, monotonic: Callable[[], float], encoded: Any = None) -> None:
        require_budget(overhead_budget)
        with decoding("the costs of a stage"):
            saved = decode(dict[str, float], encoded or {})
        self.spent_seconds: float = saved.get("spent", 0.0)
        """Time of checkpoints and writes; the write of a step that was computed in the same pass is estimated."""
        self.put_off: int = int(saved.get("put_off", 0))
        """Number of postponed checkpoints and optional snapshots."""
        self.parts: int = int(saved.get("parts", 0))
        """Number of parts that steps have computed and written."""
        self._budget = overhead_budget
        self._monotonic = monotonic
        self._elapsed_before: float = saved.get("elapsed", 0.0)
        self._begin = monotonic()
        self._is_exceeded = False

    def encode(self) -> dict[str, Any]:
        """Return the costs as JSON."""
        return {
            "spent": round(self.spent_seconds, 3),
            "elapsed": round(self.elapsed_seconds, 3),
            "put_off": self.put_off,
            "parts": self.parts,
        }

    @property
    def elapsed_seconds(self) -> float:
        """The time of all attempts in seconds; that of an earlier attempt ends with its last checkpoint."""
        return self._elapsed_before + self._monotonic() - self._begin

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time of the block as checkpointing, even if it fails."""
        begin = self._monotonic()
        try:
            yield
        finally:
            self.spent_seconds += self._monotonic() - begin

    def allow(self) -> bool:
        """Return whether the budget allows an optional checkpoint, and log the first time that it does not."""
        if self._budget is None or self.spent_seconds <= self._budget * self.elapsed_seconds:
            return True
        if not self._is_exceeded:
            self._is_exceeded = True
            log.info("%s, overhead_budget is %s: optional checkpoints are postponed.", self._share(), self._budget)
        return False

    def summary(self) -> str:
        """Return the costs of checkpointing in one line."""
        parts = f", {counted(self.parts, 'part')} of steps written" if self.parts else ""
        return f"{self._share()}, {counted(self.put_off, 'checkpoint')} postponed{parts}"

    def report(self) -> None:
        """Log the summary if there were costs."""
        if self.spent_seconds or self.put_off:
            log.info("%s", self.summary())

    @property
    def share(self) -> float:
        """The part of the time that checkpointing has taken, from 0 to 1."""
        elapsed = self.elapsed_seconds
        return self.spent_seconds / elapsed if elapsed else 0.0

    def _share(self) -> str:
        spent, elapsed = self.spent_seconds, self.elapsed_seconds
        return f"Checkpointing took {spent:.1f} s of {elapsed:.0f} s ({100 * self.share:.1f} %)"


def require_budget(overhead_budget: object) -> None:
    """
    Validate an overhead budget.

    :raises InvalidConfigurationError: unless it is ``None`` or a number above 0 and up to 1.
    """
    if overhead_budget is not None:
        expected = "above 0 and at most 1, such as 0.05 for 5 %"
        require("overhead_budget", overhead_budget, _is_share, expected)


def _is_share(value: Any) -> bool:
    # Numbers of NumPy are of subclasses.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


MIB = 1024 * 1024
ASSUMED_BYTES_PER_SECOND = 64 * MIB
"""Assumed write rate before a large write was measured."""
_MEASURED_WRITES = 16
# The time of a smaller write is mostly the start of a Spark job and the commit. A rate from it would be too low: no
# large step would be written, and the rate never corrected.
_LARGE_WRITE_BYTES = 64 * MIB


class WriteTimes:
    """
    Estimates the time of writes from the last writes of a stage that were timed without a computation.

    The estimate is a fixed cost, that of the shortest small write, plus the bytes at the average rate of the large
    writes.

    :param encoded: Return value of :meth:`encode`.
    """

    def __init__(self, encoded: Any = ()) -> None:
        with decoding("the times of writes"):
            self._seen: list[tuple[int, float]] = [(int(size), float(seconds)) for size, seconds in encoded]

    def encode(self) -> list[Any]:
        """Return the writes as JSON."""
        return [[size, round(seconds, 3)] for size, seconds in self._seen]

    def observe(self, size_bytes: int, seconds: float) -> None:
        """Record a measured write."""
        self._seen = [*self._seen, (size_bytes, seconds)][-_MEASURED_WRITES:]

    def expected_seconds(self, size_bytes: int) -> float | None:
        """Return the expected time to write a number of bytes; ``None`` before the first measured write."""
        if not self._seen:
            return None
        fixed = self._fixed_seconds()
        return fixed + size_bytes / self._bytes_per_second(fixed)

    def part_of(self, seconds: float, size_bytes: int) -> float:
        """Return the estimated time of the write in a pass that computed and wrote a step."""
        expected = self.expected_seconds(size_bytes)
        return min(seconds, size_bytes / ASSUMED_BYTES_PER_SECOND if expected is None else expected)

    def _fixed_seconds(self) -> float:
        # Without a small write, no fixed cost is assumed; the first small step is then written and measured.
        return min((seconds for size, seconds in self._seen if size < _LARGE_WRITE_BYTES), default=0.0)

    def _bytes_per_second(self, fixed: float) -> float:
        large = [
            (size, seconds - fixed) for size, seconds in self._seen if size >= _LARGE_WRITE_BYTES and seconds > fixed
        ]
        if not large:
            return ASSUMED_BYTES_PER_SECOND
        return sum(size for size, _ in large) / sum(seconds for _, seconds in large)


@dataclass(frozen=True, slots=True)
class AutoFact:
    """Measured time and size of a step with ``when="auto"``."""

    fingerprint: str
    """Fingerprint of the measured step."""
    compute_seconds: float
    size_bytes: int | None
    """Size of the cached DataFrame; ``None`` if Spark does not report it."""


def _decoded_fact(fingerprint: Any, compute_seconds: Any, size_bytes: Any) -> AutoFact:
    size = None if size_bytes is None else decode(int, size_bytes)
    return AutoFact(decode(str, fingerprint), decode(float, compute_seconds), size)


class AutoFacts(RecordsByStep[AutoFact]):
    """
    Measured steps of a stage; a retry uses them to make the same decisions.

    :param encoded: Return value of :meth:`encode`.
    """

    def __init__(self, encoded: Any = ()) -> None:
        super().__init__((decoded_step(scope, name), _decoded_fact(*fact)) for scope, name, *fact in rows_in(encoded))

    def encode(self) -> list[Any]:
        """Return the facts as JSON."""
        return [
            [*encoded_step(step), fact.fingerprint, round(fact.compute_seconds, 3), fact.size_bytes]
            for step, fact in self._sorted()
        ]

    def measured(self, step: StepKey, fingerprint: str) -> AutoFact | None:
        """Return the measurement of a step, ``None`` if there is none or the step has changed."""
        fact = self.find(step)
        return fact if fact is not None and fact.fingerprint == fingerprint else None


UNKNOWN_SIZE_BYTES = 64 * 1024 * 1024
"""Least free space for a snapshot of unknown size."""
# Java's file streams name the file before the error; Hadoop names no error if it cannot create a directory.
_OF_A_DISK = re.compile(
    r"no space left on device|disk quota exceeded|read-only file system|mkdirs failed to create", re.IGNORECASE
)
_CLASS = re.compile(r".*\b[\w.$]+(?:Exception|Error): ")
_SHOWN_CHARACTERS = 300


def require_room(storage: CheckpointStorage, step_name: str, known_bytes: int | None) -> None:
    """
    Check that there is free space for the snapshot of a step, if the storage reports it.

    :param step_name: Name of the step, for messages.
    :param known_bytes: Size of the step's last snapshot, or its estimated size; ``None`` if unknown.
    :raises StorageError: if there is too little space.
    """
    shortage = shortage_of(storage, step_name, known_bytes)
    if shortage is not None:
        raise StorageError(shortage)


def shortage_of(storage: CheckpointStorage, step_name: str, known_bytes: int | None) -> str | None:
    """Return an error message if there is too little space, else ``None``; log a warning if space is low."""
    free = storage.free_bytes()
    if free is None:
        return None
    needed = UNKNOWN_SIZE_BYTES if known_bytes is None else known_bytes
    if free < needed:
        return (
            f"Expected at least {needed} free bytes for step {step_name} "
            f"({'the minimum for an unknown size' if known_bytes is None else 'its known or estimated size'}), found "
            f"{free} bytes in {redact(storage.base_uri)}; free some space or use a larger checkpoint_dir, then retry."
        )
    if free < 2 * max(needed, UNKNOWN_SIZE_BYTES):
        uri = redact(storage.base_uri)
        log.warning("Only %s bytes are free in %s; step %s may need %s bytes.", free, uri, step_name, needed)
    return None


@contextmanager
def disk_failures_named(uri: str) -> Iterator[None]:
    """
    Replace Spark's error about a disk that is full or read-only, or whose quota is used up.

    :param uri: Directory that Spark writes to, in addition to its local directories.
    :raises StorageError: if such a disk caused the error.
    """
    try:
        yield
    except StateCheckError:
        raise
    except Exception as error:
        reason = _disk_failure_in(error)
        if reason is None:
            raise
        log.debug("A disk did not take what Spark wrote.", exc_info=True)
        # Without the cause: its hundreds of lines of JVM trace would hide this message.
        raise StorageError(
            f"Expected disks that take what Spark writes, found: {reason}, in {redact(uri)} or in Spark's local "
            "directories (spark.local.dir); free some space, raise the quota or make the disk writable, then retry. "
            "Older checkpoints are unaffected."
        ) from None


def _disk_failure_in(error: BaseException) -> str | None:
    texts = (f"{each}\n{getattr(each, '_stackTrace', '')}" for each in causes_of(error))
    line = next((line for text in texts for line in text.splitlines() if _OF_A_DISK.search(line)), None)
    if line is None:
        return None
    return _CLASS.sub("", line).strip().removeprefix("Caused by: ").rstrip(".")[:_SHOWN_CHARACTERS]
