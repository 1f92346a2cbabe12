"""Contract between a stage and its sinks."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

from airflow_provider_statecheck.exceptions import CorruptStateError, InvalidConfigurationError


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


OnEarlierOutput = Literal["retract", "refuse"]
"""What a fresh start does with the output of earlier ones."""


def require_one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    """
    Refuse an argument that is none of the choices.

    :raises InvalidConfigurationError: Says which there are.
    """
    if value not in allowed:
        raise InvalidConfigurationError(f"Expected {name} to be one of {', '.join(allowed)}, found {value!r}.")


FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCommittable(ABC):
    """The output of one task; a task without output has one too, which tells which attempt took the checkpoint."""

    KIND: ClassVar[str]
    """What it is, for messages."""

    lineage: str
    epoch: int
    subtask: int

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {"format_version": FORMAT_VERSION, **fields}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """
        Return what a task handed over.

        :raises CorruptStateError: if it is something else.
        """
        try:
            if int(document["format_version"]) != FORMAT_VERSION:
                raise ValueError(document["format_version"])  # noqa: TRY301 - told below with all the other ways
            return cls(
                lineage=str(document["lineage"]),
                epoch=int(document["epoch"]),
                subtask=int(document["subtask"]),
                **cls._output(document),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStateError(
                f"Expected {cls.KIND} of format {FORMAT_VERSION}, found {str(document)[:100]!r}; restore with the version and "
                "the kind of sink that wrote it, or from another checkpoint."
            ) from error

    @classmethod
    @abstractmethod
    def _output(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that only this kind has; errors of plain Python mean that it is something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """A complete Parquet file that waits for its commit."""

    staged: str
    """Its name within the staging directory."""
    directory: str
    """The partition that it belongs to, such as ``day=2024-01-01``; empty without partitions."""
    size_bytes: int
    rows: int
    footer_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Committable(TaskCommittable):
    """All files of one task."""

    KIND: ClassVar[str] = "a committable of a Parquet sink"

    schema: str
    """As :func:`encode_schema` gives it, with the columns of the partitions."""
    files: tuple[StagedFile, ...]

    @classmethod
    def _output(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        return {"schema": str(document["schema"]), "files": tuple(_staged_file(file) for file in document["files"])}


def encode_schema(schema: Any) -> str:
    """Return an Arrow schema as text."""
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def decode_schema(text: str) -> Any:
    """Return the Arrow schema of a text."""
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _staged_file(document: Mapping[str, Any]) -> StagedFile:
    return StagedFile(
        staged=str(document["staged"]),
        directory=str(document["directory"]),
        size_bytes=int(document["size_bytes"]),
        rows=int(document["rows"]),
        footer_sha256=str(document["footer_sha256"]),
    )
