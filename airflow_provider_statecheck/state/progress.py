"""Names of steps in their scopes, and progress of loops and of steps computed in parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime
from operator import itemgetter
from typing import Any, Generic, TypeVar
from uuid import UUID

from airflow_provider_statecheck.checkpoint.checkpoint_summary import LoopSummary, StepOutcome, StepSummary
from airflow_provider_statecheck.checkpoint.codec import decode
from airflow_provider_statecheck.exceptions import DuplicateNameError, InvalidConfigurationError
from airflow_provider_statecheck.storage.metadata_file import SnapshotHandle
from airflow_provider_statecheck.storage.stored_json import decode_state, decoding, encode_state

Item = TypeVar("Item")
_MAX_NAME = 200

Scope = tuple[tuple[str, str], ...]
"""Enclosing loops of a step and their items, outermost first."""
StepKey = tuple[Scope, str]
"""Scope and name of a step or of a loop."""


@dataclass(frozen=True, slots=True)
class NamedSnapshot:
    """The snapshot of a step, in one piece or in parts."""

    handles: tuple[SnapshotHandle, ...]
    """The snapshot, or its parts in the order of their numbers; at least one."""

    @property
    def name(self) -> str:
        """The name of the step."""
        return self.handles[0].name

    @property
    def scope(self) -> Scope:
        """The enclosing loops and their items, outermost first."""
        return self.handles[0].scope

    @property
    def parts(self) -> int:
        """The number of parts; 0 for a snapshot in one piece."""
        return len(self.handles) if self.handles[0].part else 0

    @property
    def is_complete(self) -> bool:
        """Whether all parts of the step are finished."""
        return not self.parts or all(handle.of_parts == self.parts for handle in self.handles)

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(handle.size_bytes for handle in self.handles)

    @property
    def rows(self) -> int | None:
        """The number of rows; ``None`` if it is unknown."""
        counts = [handle.rows for handle in self.handles]
        return None if None in counts else sum(count for count in counts if count is not None)

    @property
    def seconds(self) -> float:
        """The time spent on computing and writing the step."""
        return round(sum(handle.seconds for handle in self.handles), 3)


def named_snapshots(handles: Iterable[SnapshotHandle]) -> tuple[NamedSnapshot, ...]:
    """Return the snapshots of steps in the order of their first handles, with the parts of each step together."""
    found: dict[StepKey, list[SnapshotHandle]] = {}
    for handle in handles:
        found.setdefault((handle.scope, handle.name), []).append(handle)
    return tuple(NamedSnapshot(tuple(sorted(each, key=lambda handle: handle.part))) for each in found.values())


def describe(step: StepKey) -> str:
    """Return a step's name with its items, such as ``days[2026-01-01]/sessions``."""
    scope, name = step
    return "/".join(filter(None, (describe_scope(scope), name)))


def describe_scope(scope: Scope) -> str:
    """Return the items of a scope, such as ``days[2026-01-01]/hours[7]``; empty outside of loops."""
    return "/".join(f"{loop}[{item}]" for loop, item in scope)


def encoded_step(step: StepKey) -> list[Any]:
    """Return scope and name of a step or loop as JSON."""
    scope, name = step
    return [[list(pair) for pair in scope], name]


def decoded_step(scope: Any, name: Any) -> StepKey:
    """
    Return a step or loop from its scope and name in JSON.

    :raises TypeError: if one of them is no text.
    """
    return tuple((_text(loop), _text(item)) for loop, item in scope), _text(name)


def rows_in(encoded: Any) -> Iterator[Any]:
    """
    Yield the records in JSON.

    A value that is no list raises its error when the first record is read, where it is expected.
    """
    yield from encoded


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.100} is no text")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    return decode(tuple[str, ...], values)


class RecordsByStep(Generic[Item]):
    """
    What a stage records of each step or loop. Records inside an item are dropped when the item is finished.

    :param records: Records that are decoded while they are read.
    :raises CorruptStateError: if they cannot be decoded.
    """

    def __init__(self, records: Iterable[tuple[StepKey, Item]]) -> None:
        with decoding("the progress of loops and steps"):
            self._records = dict(records)
        self._totals: dict[StepKey, int] = {}
        """Length of each loop that this attempt has reached."""

    def find(self, step: StepKey) -> Item | None:
        """Return the record of a step or loop, or ``None``."""
        return self._records.get(step)

    def record(self, step: StepKey, content: Item) -> None:
        """Set the record of a step or loop."""
        self._records[step] = content

    def forget(self, step: StepKey) -> None:
        """Drop the record of a step or loop, for example because another kind of step has its name now."""
        self._records.pop(step, None)
        self._totals.pop(step, None)

    def drop_scope(self, scope: Scope) -> None:
        """Drop the records inside an item."""
        self._records = {step: each for step, each in self._records.items() if step[0][: len(scope)] != scope}
        self._totals = {step: each for step, each in self._totals.items() if step[0][: len(scope)] != scope}

    def _sorted(self) -> list[tuple[StepKey, Item]]:
        return sorted(self._records.items(), key=itemgetter(0))

    def _counts(self, done: Callable[[Item], int]) -> Mapping[StepKey, tuple[int, int | None]]:
        loops = sorted({*self._records, *self._totals})
        return {
            loop: (done(self._records[loop]) if loop in self._records else 0, self._totals.get(loop)) for loop in loops
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemBasis:
    """What an item of ``each`` was finished with."""

    run: str
    """The run that finished it."""
    version: str
    """The loop's ``version`` as JSON."""
    code: str
    """Digest of the body's code."""
    fingerprint: str
    """Fingerprint of the body's code, of what it reads and of the enclosing loops."""
    before: tuple[tuple[str, str], ...] = ()
    """Names and fingerprints of the steps and loops before the loop, whether the body reads them or not."""

    def changed_before(self, other: ItemBasis) -> tuple[str, ...]:
        """Return the names of the steps before the loop that both know and that differ."""
        known = dict(other.before)
        return tuple(name for name, fingerprint in self.before if known.get(name, fingerprint) != fingerprint)


@dataclass(slots=True)
class _Loop:
    finished: dict[str, ItemBasis | None] = field(default_factory=dict)
    seconds: float = 0.0


class LoopProgress(RecordsByStep[_Loop]):
    """
    Finished items of all loops of a stage.

    :param encoded: Return value of :meth:`encode`.
    :param bases: Return value of :meth:`encode_bases`; checkpoints of older versions have none.
    """

    def __init__(self, encoded: Any = (), bases: Any = ()) -> None:
        # Checkpoints of older versions have no seconds.
        super().__init__(
            (decoded_step(scope, name), _Loop(dict.fromkeys(_texts(keys)), float(sum(seconds))))
            for scope, name, keys, *seconds in rows_in(encoded)
        )
        with decoding("what items of loops were finished with"):
            self._add_bases(bases)

    def _add_bases(self, bases: Any) -> None:
        for scope, name, groups in bases:
            finished = self._records.get(decoded_step(scope, name), _Loop()).finished
            for content, keys in groups:
                basis = _decoded_basis(content)
                finished.update((key, basis) for key in _texts(keys) if key in finished)

    def encode(self) -> list[Any]:
        """Return the progress as JSON."""
        return [[*encoded_step(loop), list(items), round(self.seconds(loop), 3)] for loop, items in self.loops.items()]

    def encode_bases(self) -> list[Any]:
        """Return what the items were finished with as JSON, once for all items that were finished with the same."""
        return [[*encoded_step(loop), groups] for loop in self.loops if (groups := self._groups(loop))]

    def _groups(self, loop: StepKey) -> list[Any]:
        groups: dict[ItemBasis, list[str]] = {}
        for key, basis in sorted(self._records[loop].finished.items(), key=itemgetter(0)):
            if basis is not None:
                groups.setdefault(basis, []).append(key)
        return [[_encoded_basis(basis), keys] for basis, keys in groups.items()]

    @property
    def finished_items(self) -> int:
        """The number of finished items of all loops."""
        return sum(len(each.finished) for each in self._records.values())

    @property
    def loops(self) -> Mapping[StepKey, tuple[str, ...]]:
        """The finished items of each loop, both in order."""
        return {loop: tuple(sorted(each.finished)) for loop, each in self._sorted() if each.finished}

    @property
    def counts(self) -> Mapping[StepKey, tuple[int, int | None]]:
        """The number of finished items of each loop, and of all its items if this attempt has reached it."""
        return self._counts(lambda each: len(each.finished))

    def seconds(self, loop: StepKey) -> float:
        """Return the time of the finished items of a loop, in the attempts that finished them; 0 if it is unknown."""
        return self._records.get(loop, _Loop()).seconds

    def finished_of(self, loop: StepKey) -> int:
        """Return the number of finished items of a loop, also of those that are no longer among its items."""
        return len(self._records.get(loop, _Loop()).finished)

    def expect(self, loop: StepKey, item_keys: Iterable[str]) -> None:
        """Record the items of a loop in this attempt; finished items that are no longer among them count too."""
        self._totals[loop] = len(self._records.get(loop, _Loop()).finished.keys() | item_keys)

    def is_finished(self, loop: StepKey, item_key: str) -> bool:
        """Return whether an item is finished, in this attempt or an earlier one."""
        return loop in self._records and item_key in self._records[loop].finished

    def bases(self, loop: StepKey, item_keys: Iterable[str]) -> Mapping[str, ItemBasis | None]:
        """Return what the finished ones among some items were finished with, ``None`` if that is unknown."""
        finished = self._records.get(loop, _Loop()).finished
        return {key: finished[key] for key in item_keys if key in finished}

    def finish(self, loop: StepKey, item_key: str, seconds: float = 0.0, basis: ItemBasis | None = None) -> None:
        """
        Record an item as finished, and drop the loops inside it.

        :param seconds: Time of the item in this attempt.
        :param basis: What it was finished with.
        """
        known = self._records.setdefault(loop, _Loop())
        known.finished[item_key] = basis
        known.seconds += seconds
        self.drop_scope((*loop[0], (loop[1], item_key)))

    def set_basis(self, loop: StepKey, item_key: str, basis: ItemBasis) -> None:
        """Let a finished item count as finished with this basis, so that a change is reported once."""
        self._records[loop].finished[item_key] = basis

    def reopen(self, loop: StepKey, item_keys: Collection[str]) -> None:
        """Let finished items count as unfinished; the time of the others is estimated by their number."""
        known = self._records[loop]
        before = len(known.finished)
        for key in item_keys:
            del known.finished[key]
        known.seconds *= len(known.finished) / before


def _encoded_basis(basis: ItemBasis) -> dict[str, Any]:
    return asdict(basis) | {"before": [list(pair) for pair in basis.before]}


def _decoded_basis(content: Mapping[str, Any]) -> ItemBasis:
    return ItemBasis(
        run=str(content["run"]),
        version=str(content["version"]),
        code=str(content["code"]),
        fingerprint=str(content["fingerprint"]),
        before=tuple((str(name), str(fingerprint)) for name, fingerprint in content["before"]),
    )


@dataclass(frozen=True, slots=True)
class Iteration:
    """Iteration of a loop that its snapshot contains."""

    number: int
    """Number of the step, counted from 1."""
    is_converged: bool
    """Whether the loop ended with this step."""


def _decoded_iteration(number: Any, is_converged: Any) -> Iteration:
    return Iteration(decode(int, number), decode(bool, is_converged))


class Iterations(RecordsByStep[Iteration]):
    """
    Newest snapshotted iteration of each loop of a stage.

    :param encoded: Return value of :meth:`encode`.
    """

    def __init__(self, encoded: Any = ()) -> None:
        super().__init__(
            (decoded_step(scope, name), _decoded_iteration(*reached)) for scope, name, *reached in rows_in(encoded)
        )

    def encode(self) -> list[Any]:
        """Return the loops as JSON."""
        return [[*encoded_step(loop), reached.number, reached.is_converged] for loop, reached in self._sorted()]

    @property
    def loops(self) -> Mapping[StepKey, Iteration]:
        """The newest snapshotted iteration of each loop, in the order of the loops."""
        return dict(self._sorted())

    @property
    def counts(self) -> Mapping[StepKey, tuple[int, int | None]]:
        """The newest snapshotted iteration of each loop, and its last one if this attempt has reached the loop."""
        return self._counts(lambda reached: reached.number)

    def expect(self, loop: StepKey, total: int) -> None:
        """Record the largest number of iterations of a loop in this attempt."""
        self._totals[loop] = total


Pieces = Sequence[Sequence[int]]
"""Items and row groups of a part as plain values, as the enumerator of its source encodes them."""


@dataclass(frozen=True, slots=True)
class BadPart:
    """A part that failed and is left to a later attempt."""

    input: tuple[str, ...]
    """Names of its items, with the rows that it reads of each as far as they are known."""
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedStep:
    """A step that is computed in parts."""

    fingerprint: str
    """Fingerprint of the code and of the input."""
    listed: Mapping[str, Any]
    """State of the source before the first part; it lists the input that all attempts read."""
    finished: Mapping[int, Pieces] = field(default_factory=dict)
    """Input of each finished part, by the number of the part."""
    bad: tuple[BadPart, ...] = ()
    share: float = 0.0
    """Finished part of the input, from 0 to 1."""

    def with_part(self, number: int, pieces: Pieces, share: float) -> PartedStep:
        """Return the progress after a part."""
        return replace(self, finished={**self.finished, number: pieces}, share=share)

    def limited_to(self, numbers: Collection[int]) -> PartedStep:
        """Return the progress with some of the finished parts only, because the others are damaged."""
        return replace(self, finished={n: pieces for n, pieces in self.finished.items() if n in numbers})

    @property
    def last_number(self) -> int:
        """The largest number of a finished part, 0 if there is none."""
        return max(self.finished, default=0)


class PartProgress(RecordsByStep[PartedStep]):
    """
    Progress of all steps of a stage that are computed in parts.

    :param encoded: Return value of :meth:`encode`.
    """

    def __init__(self, encoded: Any = ()) -> None:
        super().__init__((decoded_step(scope, name), _decoded(content)) for scope, name, content in rows_in(encoded))

    def encode(self) -> list[Any]:
        """Return the progress as JSON."""
        return [[*encoded_step(step), _encoded(parted)] for step, parted in self._sorted()]

    def keep(self, steps: Collection[StepKey]) -> None:
        """Drop all steps but the given ones."""
        self._records = {step: parted for step, parted in self._records.items() if step in steps}


def _encoded(parted: PartedStep) -> dict[str, Any]:
    return {
        "fingerprint": parted.fingerprint,
        "listed": encode_state(dict(parted.listed)),
        "finished": [[number, [list(piece) for piece in pieces]] for number, pieces in parted.finished.items()],
        "bad": [[list(each.input), each.error] for each in parted.bad],
        "share": round(parted.share, 6),
    }


def _decoded(content: Mapping[str, Any]) -> PartedStep:
    return PartedStep(
        fingerprint=str(content["fingerprint"]),
        listed=dict(decode_state(content["listed"])),
        finished={int(number): _decoded_pieces(pieces) for number, pieces in content["finished"]},
        bad=tuple(BadPart(_texts(names), _text(error)) for names, error in content["bad"]),
        share=float(content["share"]),
    )


def _decoded_pieces(pieces: Any) -> Pieces:
    return [list(piece) for piece in decode(tuple[tuple[int, ...], ...], pieces)]


class ScopedNames:
    """
    Names of steps and loops that were used in this attempt.

    A second use of a name in one scope is an error: it would return the data of the first step.
    """

    def __init__(self) -> None:
        self.current: Scope = ()
        self.used: set[StepKey] = set()
        self.passed: dict[StepKey, str] = {}
        """Fingerprints of the loops over items that this attempt has reached."""

    def claim(self, name: object) -> StepKey:
        """
        Register a name in the current scope and return its key.

        :raises InvalidConfigurationError: for a name that is not 1 to 200 characters of text.
        :raises DuplicateNameError: if the name is already used.
        """
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
            raise InvalidConfigurationError(
                f"Expected the name of a step to be text of 1 to {_MAX_NAME} characters, found {name!r}; rename the "
                "step."
            )
        step = (self.current, name)
        if step in self.used:
            raise DuplicateNameError(f"The name {describe(step)!r} is used twice; give each step a unique name.")
        self.used.add(step)
        return step

    @contextmanager
    def inside(self, name: str, item_key: str) -> Iterator[Scope]:
        """Make an item the current scope; its names are released at the end."""
        outer = self.current
        inner = (*outer, (name, item_key))
        self.current = inner
        try:
            yield inner
        finally:
            self.current = outer
            self.used = {step for step in self.used if step[0][: len(inner)] != inner}


def keyed(items: Iterable[Item], key: Callable[[Item], Any] | None) -> list[tuple[str, Item]]:
    """
    Return pairs of an item's key, as text, and the item.

    :param items: The items; all are read before the first pair is returned.
    :param key: Function that returns the key of an item; by default an item that is text, a whole number, a date or a
        UUID is its own key.
    :raises InvalidConfigurationError: for an item without a key.
    :raises DuplicateNameError: if two items have the same key.
    """
    pairs = [(_encoded_key(item if key is None else key(item)), item) for item in items]
    seen: set[str] = set()
    for encoded, item in pairs:
        if encoded in seen:
            raise DuplicateNameError(
                f"Expected a unique key for each item, found {encoded!r} twice, the second time for {item!r}; pass "
                "key= to derive unique keys."
            )
        seen.add(encoded)
    return pairs


def _encoded_key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, datetime | date):
        return key.isoformat()
    if isinstance(key, int | UUID) and not isinstance(key, bool):
        return str(key)
    raise InvalidConfigurationError(
        f"Expected the key of an item to be text, a whole number, a date or a UUID, found {key!r}; "
        f"pass key= to derive a key that is the same in every try."
    )


def step_summary(snapshot: NamedSnapshot, outcome: StepOutcome, progress: PartedStep | None = None) -> StepSummary:
    """
    Return the figures of a step with a snapshot.

    :param progress: Progress of a step that is computed in parts; ``None`` if it is unknown.
    """
    return StepSummary(
        name=describe((snapshot.scope, snapshot.name)),
        outcome=outcome.value,
        seconds=snapshot.seconds,
        size_bytes=snapshot.size_bytes,
        rows=snapshot.rows,
        parts=snapshot.parts,
        share=1.0 if snapshot.is_complete else None if progress is None else progress.share,
        bad_parts=0 if progress is None else len(progress.bad),
    )


def loop_summaries(progress: LoopProgress, iterations: Iterations) -> Iterator[LoopSummary]:
    """Return the figures of all loops, the outermost first."""
    for loop, (finished, total) in progress.counts.items():
        yield LoopSummary(name=describe(loop), finished=finished, total=total, seconds=progress.seconds(loop))
    for loop, (reached, total) in iterations.counts.items():
        yield LoopSummary(name=describe(loop), finished=reached, total=total, is_iteration=True)
