"""What a stage asks of the place where its output goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """Which attempt opens a sink."""

    job_id: str
    job_name: str
    uid: str
    """Of the sink within its job."""
    operator_id: str
    epoch: int
    generation: int
    """Grows with each fresh start."""
    restored_checkpoint_id: int | None
    """The checkpoint that the attempt goes on from; ``None`` also for one of another job, of which nothing is here."""
    restored_epoch: int | None = None
    """The attempt that took that checkpoint."""
    is_fresh: bool
    """Whether the attempt starts with nothing."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options of the filesystem, for a sink that was given none of its own; they may be credentials."""
    schema: Any = None
    """Arrow schema of what will be written, where it is known: what does not fit is refused before any work."""
    gone_uids: tuple[str, ...] = ()
    """Of sinks of the same job whose stages are gone; a sink that is new in a place refuses it if their output is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTaskContext:
    """Which Spark task writes."""

    subtask: int
    epoch: int
    task_id: str
    """Differs between any two tries of any tasks, of all attempts and checkpoints."""
    schema: Any
    """Arrow schema of what will be written."""


class SinkWriter(Protocol):
    """
    Writes what one Spark task gives out.

    The task calls :meth:`write` any number of times, then :meth:`prepare_commit` once, or :meth:`abort` if it fails.
    Nothing that is written can be seen by a reader before the driver commits it.
    """

    def write(self, table: Any) -> None:
        """
        Take a table.

        :param table: An Arrow table with the columns of the schema.
        """
        ...

    def prepare_commit(self) -> list[dict[str, Any]]:
        """Make durable what was written and return what commits it, as plain JSON; never nothing."""
        ...

    def abort(self) -> None:
        """Give up what was written; called in place of, or after a failing :meth:`prepare_commit`."""
        ...


@runtime_checkable
class Sink(Protocol):
    """
    A place for output that takes part in checkpoints.

    On the driver: :meth:`open` once, before any work and after it is settled which checkpoint is restored. Then
    :meth:`commit` for each completed checkpoint whose commit is not confirmed, in the order of their ids and before the
    first commit of the attempt's own. At last :meth:`close`. In a Spark task: :meth:`writer`, of a pickled copy that was
    opened. What Spark repeats or throws away never reaches the driver, and so is never committed.
    """

    def open(self, context: SinkContext) -> None:
        """
        Check the place and take it over from earlier attempts; may be repeated.

        :raises StaleAttemptError: A newer attempt has it.
        :raises StateCheckError: Nothing can be written there; says why.
        """
        ...

    def writer(self, context: SinkTaskContext) -> SinkWriter:
        """Return the writer of one Spark task."""
        ...

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        """
        Publish what belongs to a completed checkpoint; may be repeated, also by a later attempt.

        :param committables: What the writers of the checkpoint returned, in any order. Some may be of another job, at whose
            savepoint this one began; a sink publishes none of these.
        """
        ...

    def close(self, succeeded: bool) -> None:
        """
        End the attempt.

        :param succeeded: Whether the stage came to its end, with every commit confirmed.
        """
        ...
