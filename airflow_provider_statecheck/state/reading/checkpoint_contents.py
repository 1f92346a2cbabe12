"""
Contents and figures of a checkpoint: snapshots, progress of loops, named values and states.

``_metadata`` contains no figures of its own. It holds what a restore needs, and most figures follow from that; the time
to write ``_metadata`` is known only after it was written. The rows of a recovered job get these figures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from typing import Any, TypeVar

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary, StateSummary, StepOutcome
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    OperatorState,
    streams_of_subtask,
)
from airflow_provider_statecheck.exceptions import RequestLimitError, StateCheckError, UnknownStateError
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.progress import (
    Iterations,
    LoopProgress,
    NamedSnapshot,
    PartProgress,
    describe,
    describe_scope,
    loop_summaries,
    named_snapshots,
    step_summary,
)
from airflow_provider_statecheck.state.reading.checkpoint_states import (
    CheckpointStates,
    FunctionState,
    json_of,
    schemas_in,
)
from airflow_provider_statecheck.state.reading.snapshot_reader import dataframe_columns
from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas, StateSchema
from airflow_provider_statecheck.state.serializers.serializer import describe as describe_type
from airflow_provider_statecheck.state.source_items import BROADCAST_SUFFIX, SOURCE, Ledger, decode_ledger, unpack_items
from airflow_provider_statecheck.storage.bounds import MOST_PROBLEMS
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import UNREADABLE, CheckpointDocument, InlineStateHandle
from airflow_provider_statecheck.storage.snapshot_manifest import read_manifest
from airflow_provider_statecheck.storage.stored_json import UNDECODABLE, decode_state, decoding
from airflow_provider_statecheck.storage.views.state_files import read_state

log = logging.getLogger(__name__)
_PROGRESS = "the progress of loops or of a source in the values of the checkpoint"
Content = TypeVar("Content")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotContent:
    """A named DataFrame snapshot."""

    name: str
    scope: str
    """Items of the loops around the snapshot, such as ``days[2026-01-01]``; empty outside of loops."""
    rows: int
    size_bytes: int
    files: int
    columns: tuple[tuple[str, str], ...]
    """Name and Arrow type of each column."""
    written_by: str
    """``spark`` for Spark's own writer, ``executors`` for Python on the executors."""
    written_at: datetime
    attempt: int
    """Epoch of the attempt that wrote the snapshot, or its last part."""
    seconds: float
    """Time to compute and write the snapshot."""
    parts: int = 0
    """Number of finished parts of a step that is computed in parts; 0 for other steps."""
    is_complete: bool = True
    """Whether all parts are finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedItems:
    """Number of finished items of a loop."""

    loop: str
    """Name of the loop, after the items of the loops around it; ``source`` for the source of a stage."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachedIteration:
    """Newest iteration of a loop that its snapshot contains."""

    loop: str
    iteration: int
    is_converged: bool
    """Whether the loop ended with this iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldState:
    """A state of a function of a stage."""

    uid: str
    """Uid of the function within its stage."""
    name: str
    kind: StateKind
    key: str | None
    """Type of the key; ``None`` for operator state."""
    type: str
    expires: bool
    queryable_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Page of the finished items of a loop, in their order as text."""

    loop: str
    items: tuple[str, ...]
    following: int
    """Number of items after this page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableContent:
    """Content of a checkpoint whose files are damaged or missing."""

    kind: str
    """``snapshot``, ``items``, ``iterations``, ``values`` or ``states``; ``checkpoint`` for all of them."""
    name: str
    """Name of the snapshot after the items of the loops around it; empty for another kind."""
    code: str
    """Code of the error."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentsListing:
    """All contents of a checkpoint that can be read, and what cannot be read."""

    snapshots: tuple[SnapshotContent, ...] = ()
    finished_items: tuple[FinishedItems, ...] = ()
    iterations: tuple[ReachedIteration, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    states: tuple[HeldState, ...] = ()
    unreadable: tuple[UnreadableContent, ...] = ()


class _TolerantReads:
    """Reads contents, and notes what cannot be read instead of raising its error."""

    def __init__(self) -> None:
        self.unreadable: list[UnreadableContent] = []

    def read(self, kind: str, call: Callable[[], Content], default: Content, name: str = "") -> Content:
        """Return what a call reads, or the default if it is damaged, missing or too large."""
        try:
            return call()
        except (*UNREADABLE, RequestLimitError) as error:
            self.unreadable.append(UnreadableContent(kind=kind, name=name, code=error.code, message=str(error)))
            return default

    def leave_out(self, kind: str, count: int) -> None:
        """Note how many others are left out."""
        self.unreadable.append(
            UnreadableContent(
                kind=kind,
                name="",
                code=RequestLimitError.code,
                message=f"{count} more were not read after {MOST_PROBLEMS} that cannot be read.",
            )
        )


class CheckpointContents:
    """
    Contents of one checkpoint or savepoint.

    Its methods raise ``CorruptStateError`` if a file or the values of the checkpoint were changed,
    ``CheckpointNotFoundError`` if a file is missing, ``IncompatibleCheckpointError`` if a newer version wrote it, and
    ``StorageError`` if the storage fails.
    """

    def __init__(self, states: CheckpointStates) -> None:
        self.checkpoint = states

    @property
    def snapshot_names(self) -> tuple[str, ...]:
        """The names of the snapshots, each once."""
        return tuple(dict.fromkeys(each.name for each in self._snapshots))

    @property
    def loops(self) -> tuple[str, ...]:
        """The names of the loops with finished items."""
        return tuple(self._items)

    def snapshots(self) -> tuple[SnapshotContent, ...]:
        """Return the named DataFrame snapshots; reads the manifest of each."""
        return tuple(map(self._snapshot, self._snapshots))

    def finished_items(self) -> tuple[FinishedItems, ...]:
        """Return the number of finished items of the source, and of each loop that is not inside a finished item."""
        return tuple(FinishedItems(loop=loop, count=len(items)) for loop, items in self._items.items())

    def items(self, loop: str, *, after: str | None = None, limit: int) -> Items:
        """
        Return finished items of a loop.

        :param loop: Name of the loop, as :meth:`finished_items` returns it.
        :param after: The last item of the previous page; ``None`` for the first page.
        :param limit: Largest number of items.
        :raises UnknownStateError: if the loop has no finished items; the message lists the loops that have.
        """
        if loop not in self._items:
            known = ", ".join(map(repr, self._items)) or "no such loop"
            raise UnknownStateError(
                f"Expected a loop with finished items in checkpoint {self.checkpoint.document.checkpoint_id} of job "
                f"{self.checkpoint.document.job_name!r}, found {loop!r}; those with finished items: {known}."
            )
        found = [each for each in self._items[loop] if after is None or each > after]
        return Items(loop=loop, items=tuple(found[:limit]), following=max(0, len(found) - limit))

    def iterations(self) -> tuple[ReachedIteration, ...]:
        """Return the newest iteration of each loop of ``iterate`` that has a snapshot."""
        with decoding(_PROGRESS):
            reached = Iterations(self._values.get("iterations", ())).loops
        return tuple(
            ReachedIteration(loop=describe(loop), iteration=each.number, is_converged=each.is_converged)
            for loop, each in reached.items()
        )

    def values(self) -> dict[str, Any]:
        """Return the named values that the user's function has set."""
        encoded = self._values.get("values")
        with decoding("the named values of a stage"):
            return {} if encoded is None else dict(decode_state(encoded))

    def states(self) -> tuple[HeldState, ...]:
        """Return the states of the functions; reads the header of each state file."""
        functions = map(self.checkpoint.complete, self.checkpoint.functions())
        return tuple(state for each in functions for state in _states_of(each))

    def listing(self) -> ContentsListing:
        """
        Return all contents. What is damaged or missing is listed as unreadable, without an error.

        After 100 unreadable snapshots, no others are read.
        """
        reads = _TolerantReads()
        return ContentsListing(
            snapshots=tuple(self._readable_snapshots(reads)),
            finished_items=reads.read("items", self.finished_items, ()),
            iterations=reads.read("iterations", self.iterations, ()),
            values=reads.read("values", self.values, {}),
            states=reads.read("states", self.states, ()),
            unreadable=tuple(reads.unreadable),
        )

    def _readable_snapshots(self, reads: _TolerantReads) -> Iterator[SnapshotContent]:
        snapshots = self._snapshots
        for number, each in enumerate(snapshots):
            if len(reads.unreadable) >= MOST_PROBLEMS:
                reads.leave_out("snapshot", len(snapshots) - number)
                return
            found = reads.read("snapshot", partial(self._snapshot, each), None, describe((each.scope, each.name)))
            if found is not None:
                yield found

    @cached_property
    def _values(self) -> Mapping[str, Any]:
        return self.checkpoint.values()

    @cached_property
    def _items(self) -> dict[str, tuple[str, ...]]:
        ledger = source_ledger(self.checkpoint.storage, self.checkpoint.document)
        with decoding(_PROGRESS):
            loops = LoopProgress(self._values.get("loops", ())).loops
            found = {describe(loop): items for loop, items in loops.items()}
            return found if ledger is None else found | {SOURCE: tuple(sorted(ledger.finished_names))}

    @property
    def _snapshots(self) -> tuple[NamedSnapshot, ...]:
        return named_snapshots(self.checkpoint.document.snapshots)

    def _snapshot(self, snapshot: NamedSnapshot) -> SnapshotContent:
        manifests = [read_manifest(self.checkpoint.storage, each) for each in snapshot.handles]
        newest = max(snapshot.handles, key=lambda handle: (handle.epoch, handle.part))
        return SnapshotContent(
            name=snapshot.name,
            scope=describe_scope(snapshot.scope),
            rows=sum(manifest.rows for manifest in manifests),
            size_bytes=snapshot.size_bytes,
            files=sum(handle.files for handle in snapshot.handles),
            columns=tuple((each.name, each.type_name) for each in dataframe_columns(manifests[0].schema_json)),
            written_by=manifests[0].writer.value,
            written_at=newest.created_at,
            attempt=newest.epoch,
            seconds=snapshot.seconds,
            parts=snapshot.parts,
            is_complete=snapshot.is_complete,
        )


def source_ledger(storage: CheckpointStorage, document: CheckpointDocument) -> Ledger | None:
    """
    Return the items of a stage's source with their progress; ``None`` for a stage or a source without items.

    :raises CorruptStateError: if the progress is damaged.
    :raises CheckpointNotFoundError: if its file is missing.
    """
    source = f"{document.uid}/{SOURCE}"
    return next((_ledger_of(storage, each) for each in document.operator_states if each.uid == source), None)


def input_ledgers(storage: CheckpointStorage, document: CheckpointDocument) -> tuple[Ledger, ...]:
    """
    Return the items of all inputs of a stage: of its source and of its broadcast inputs, as far as they have items.

    The errors are those of :func:`source_ledger`.
    """
    source = f"{document.uid}/{SOURCE}"
    states = (s for s in document.operator_states if s.uid == source or s.uid.endswith(BROADCAST_SUFFIX))
    return tuple(ledger for each in states if (ledger := _ledger_of(storage, each)) is not None)


def _ledger_of(storage: CheckpointStorage, state: OperatorState) -> Ledger | None:
    stream = state.coordinator_state
    if stream is None:
        return None
    with decoding(_PROGRESS):
        value = decode_state(json_of(read_state(storage, stream)))
        # A source of the user keeps its progress in a form of its own.
        has_items = isinstance(value, Mapping) and {"format", "listing", "progress"} <= value.keys()
        return decode_ledger(unpack_items(value["listing"]), value["progress"]) if has_items else None


def _states_of(function: FunctionState) -> Iterator[HeldState]:
    schemas = function.schemas
    for place, schema in enumerate((*schemas.keyed, *schemas.operator)):
        key = schemas.key if place < len(schemas.keyed) else None
        yield HeldState(
            uid=function.uid,
            name=schema.name,
            kind=schema.kind,
            key=None if key is None else describe_type(key),
            type=type_text(schema),
            expires=schema.expires,
            queryable_name=schema.queryable_name,
        )


def summary_of(document: CheckpointDocument) -> CheckpointSummary | None:
    """Return the figures of a checkpoint, from its metadata alone; ``None`` if they cannot be read."""
    try:
        values = document.state.value if isinstance(document.state, InlineStateHandle) else {}
        parts = PartProgress(values.get("parts", ()))
        return CheckpointSummary(
            steps=tuple(
                step_summary(each, StepOutcome.HELD, parts.find((each.scope, each.name)))
                for each in named_snapshots(document.snapshots)
            ),
            loops=tuple(
                loop_summaries(LoopProgress(values.get("loops", ())), Iterations(values.get("iterations", ())))
            ),
            states=tuple(_summaries_of_states(document)),
        )
    except (StateCheckError, *UNDECODABLE) as error:
        log.warning("The figures of checkpoint %s cannot be read: %r", document.checkpoint_id, error)
        return None


def state_summaries(
    uid: str, schemas: OperatorSchemas, sizes: Mapping[str, tuple[int | None, int | None]]
) -> Iterator[StateSummary]:
    """
    Return the figures of the states of a function.

    :param uid: Uid of the function within its stage.
    :param sizes: Number of keys and size in bytes of each state, as far as they are known.
    """
    for schema in (*schemas.keyed, *schemas.operator):
        keys, size_bytes = sizes.get(schema.name, (None, None))
        yield StateSummary(
            uid=uid,
            name=schema.name,
            kind=schema.kind.value,
            type=type_text(schema),
            keys=keys,
            size_bytes=size_bytes,
        )


def size_of_only_state(schemas: OperatorSchemas, operators: Iterable[OperatorState]) -> dict[str, int]:
    """Return the size of the state of a function by name; empty for several states, which share files."""
    names = [schema.name for schema in (*schemas.keyed, *schemas.operator)]
    subtasks = (subtask for operator in operators for subtask in operator.subtask_states.values())
    # A file may have state of several subtasks.
    streams = {stream for subtask in subtasks for stream in streams_of_subtask(subtask)}
    return {names[0]: sum(stream.state_size for stream in streams)} if len(names) == 1 else {}


def type_text(schema: StateSchema) -> str:
    """Return the type of the values of a state, for a map after that of its keys."""
    map_key = "" if schema.key is None else f"{describe_type(schema.key)} to "
    return f"{map_key}{describe_type(schema.value)}"


def _summaries_of_states(document: CheckpointDocument) -> Iterator[StateSummary]:
    prefix = f"{document.uid}/"
    for operator in document.operator_states:
        # Schemas in a file are not read: these figures must cost no access to the storage.
        inline = operator.coordinator_state
        schemas = schemas_in(inline.data) if isinstance(inline, ByteStreamStateHandle) else None
        if schemas is not None:
            known = {name: (None, size) for name, size in size_of_only_state(schemas, [operator]).items()}
            yield from state_summaries(operator.uid.removeprefix(prefix), schemas, known)
