"""
What a stage whose state goes from run to run must do, in plain Python.

The model uses nothing of the package. It knows the input, the runs and the rules of ``docs/use/runs.md``, and says from
which checkpoint an attempt may start or with which code it must be refused, and which rows a reader of the output must
see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

Row = tuple[str, str, int]
"""Id of an input row, its key, and how many rows of this key the state had counted with it."""

SUPERSEDED, CONCURRENT = "run_superseded", "concurrent_attempt"
NOT_RESTORABLE, INCOMPATIBLE, CHANGED = "no_restorable_checkpoint", "incompatible_checkpoint", "source_changed"


@dataclass(frozen=True, kw_only=True)
class File:
    """A unit of input."""

    version: int
    rows: tuple[tuple[str, str], ...]
    """Ids and keys."""
    partition: str | None = None
    """Directory that is written as a whole; ``None`` if there is none."""


Files = Mapping[str, File]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of the Dag, which its date identifies, else its partition, else its id."""

    run_id: str
    day: int | None = None
    partition: str | None = None
    partition_day: int | None = None
    """Date of the partition, which gives it an order."""

    @property
    def key(self) -> str:
        """Return what is the same for all runs that stand for the same work."""
        return f"day {self.day:03d}" if self.day is not None else self.partition or self.run_id

    @property
    def order(self) -> int | None:
        """Return the date that orders the run, or ``None`` if it has no order."""
        return self.partition_day if self.day is None else self.day

    def is_same(self, other: Run) -> bool:
        """Return whether two runs stand for the same work."""
        return self.key == other.key

    def is_before(self, other: Run) -> bool:
        """Return whether both runs have an order, and this one comes first."""
        return self.order is not None and other.order is not None and self.order < other.order

    def __str__(self) -> str:
        return f"{self.run_id} ({self.key})"


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A completed checkpoint."""

    run: Run
    listed: Files
    """The input of the run, as it was listed when the run began."""
    done: frozenset[str]
    rows: tuple[Row, ...]
    """All rows of output up to here, from which the state follows."""
    number: int = 0
    """Id by which the driver of the walk finds it again."""

    @property
    def is_complete(self) -> bool:
        """Return whether its run had read all of its input."""
        return self.done >= self.listed.keys()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A permitted start: how many checkpoints remain, and what is read after them."""

    kept: int
    listed: Files
    done: frozenset[str]

    @property
    def left(self) -> list[str]:
        """Return the names of the input that is still to be read, in their order."""
        return [name for name in self.listed if name not in self.done]


@dataclass(frozen=True, kw_only=True)
class Permitted:
    """What the product may do: one of some plans, or a refusal with one of some codes."""

    plans: tuple[Plan, ...] = ()
    codes: frozenset[str] = frozenset()


def counted(before: Sequence[Row], added: Iterable[tuple[str, str]]) -> tuple[Row, ...]:
    """Return the rows of output with those of more input."""
    counts, rows = Counter(key for _, key, _ in before), list(before)
    for name, key in added:
        counts[key] += 1
        rows.append((name, key, counts[key]))
    return tuple(rows)


@dataclass
class StageModel:
    """The checkpoints of a stage that are in force, and the rows that a reader sees."""

    restarts_on_change: bool
    chain: list[Taken] = field(default_factory=list)
    shown: tuple[Row, ...] = ()
    last: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """Id of the run of the last attempt, and whether it finished, by the key of the run."""
    uncommitted: Taken | None = None
    """Checkpoint whose output is not committed yet."""
    first_run: Run | None = None
    """Run that began with empty state."""

    # --- registration

    def register(self, run: Run, *, cleared: bool, on_clear: str, created_again: bool) -> int | frozenset[str]:
        """Return how many checkpoints remain at the start of a run, or the codes with which it must be refused."""
        if not self.chain:
            return 0
        if run.is_same(self.chain[-1].run):
            begins_again = created_again or self._begins_again(run, cleared, on_clear)
            return self._end_before(run) if begins_again else len(self.chain)
        # A run that has advanced the state before others did would be counted twice.
        is_past = any(run.is_same(taken.run) or run.is_before(taken.run) for taken in self.chain)
        return frozenset({SUPERSEDED}) if is_past else len(self.chain)

    def _begins_again(self, run: Run, cleared: bool, on_clear: str) -> bool:
        last_id, finished = self.last[run.key]
        if last_id != run.run_id:
            # Another run of a date begins again, and one of a partition takes over what a failed one has done.
            return run.partition is None or finished or on_clear == "restart"
        if not cleared or on_clear == "resume":
            return False
        return on_clear == "restart" or finished

    def _end_before(self, run: Run, end: int | None = None) -> int:
        kept = len(self.chain) if end is None else end
        while kept and run.is_same(self.chain[kept - 1].run):
            kept -= 1
        return kept

    def registered(self, run: Run, kept: int) -> None:
        """Release the checkpoints of a run that begins again."""
        del self.chain[kept:]
        self.last[run.key] = run.run_id, False
        if not kept:
            self.first_run = run

    # --- source

    def plans(self, run: Run, files: Files) -> Permitted:
        """Return how the registered run may read its input."""
        kept = len(self.chain)
        plan = self._plan(run, files, kept, is_again=False)
        if plan is not None:
            return Permitted(plans=(plan,))
        if not self.restarts_on_change:
            return Permitted(codes=frozenset({CHANGED}))
        return self._restarts(run, files)

    def _plan(self, run: Run, files: Files, kept: int, *, is_again: bool) -> Plan | None:
        """Return the plan after some checkpoints, or ``None`` if what they have read has changed."""
        if not kept:
            return Plan(kept=0, listed=dict(sorted(files.items())), done=frozenset())
        base = self.chain[kept - 1]
        if run.is_same(base.run) and not is_again:
            same = {n: f.version for n, f in base.listed.items()} == {n: f.version for n, f in files.items()}
            return Plan(kept=kept, listed=base.listed, done=base.done) if same else None
        if _is_changed(base, files):
            return None
        # What the run before has left is read first, then what appeared since, each in the order of their paths.
        known, new = ({n: files[n] for n in names} for names in _known_and_new(base, files))
        return Plan(kept=kept, listed=known | new, done=base.done & files.keys())

    def _restarts(self, run: Run, files: Files) -> Permitted:
        """
        Return the starts after a change: from the end of the run before.

        From a half-read one, a refusal is right too.
        """
        kept, given_up = self._end_before(run), frozenset[str]()
        codes: frozenset[str] = frozenset()
        while True:
            plan = self._plan(run, files, kept, is_again=True)
            if plan is not None:
                lost = given_up - files.keys()
                plans = () if lost else (plan,)
                return Permitted(plans=plans, codes=frozenset({CHANGED}) if lost else codes)
            ended = self.chain[kept - 1]
            if ended.is_complete:
                return Permitted(codes=frozenset({CHANGED}))
            codes, given_up = frozenset({CHANGED}), given_up | ended.done
            kept = self._end_before(ended.run, kept)

    # --- work

    def has_finished(self, run: Run) -> bool:
        """Return whether the last attempt was of this run, and finished."""
        return self.last.get(run.key) == (run.run_id, True)

    def take_over(self, run: Run, plan: Plan) -> Taken:
        """Begin with a plan; what the restored checkpoint has left to commit becomes visible."""
        if not plan.kept and self.chain:
            self.first_run = run
        del self.chain[plan.kept :]
        rows = self.chain[-1].rows if self.chain else ()
        if self.chain and self.chain[-1] is self.uncommitted:
            self.commit()
        return Taken(run=run, listed=plan.listed, done=plan.done, rows=rows)

    def read(self, taken: Taken, names: Sequence[str]) -> Taken:
        """Return what a checkpoint after more input holds."""
        rows = counted(taken.rows, (row for name in names for row in taken.listed[name].rows))
        return replace(taken, done=taken.done | set(names), rows=rows)

    def complete(self, taken: Taken) -> None:
        """Complete a checkpoint."""
        self.chain.append(taken)
        self.uncommitted = taken

    def commit(self) -> None:
        """Show what the newest checkpoint has, and nothing else."""
        self.shown, self.uncommitted = self.chain[-1].rows if self.chain else (), None

    def finish(self, run: Run) -> None:
        """End a run with success, with which a run that began again has replaced its output also if it has none."""
        self.last[run.key] = run.run_id, True
        self.commit()

    # --- rewind

    def rewind(self, run: Run) -> frozenset[str]:
        """Take back a run and all that are not known to precede it; return the codes of a refusal."""
        own = [i for i, taken in enumerate(self.chain) if run.is_same(taken.run)]
        kept = own[0] if own else self._known_before(run)
        first = self.first_run
        is_first = first is not None and (run.is_same(first) or _has_earlier_date(run, first))
        if self.chain and not kept and not is_first:
            return frozenset({NOT_RESTORABLE})
        del self.chain[kept:]
        return frozenset()

    def _known_before(self, run: Run) -> int:
        later = [i for i, taken in enumerate(self.chain) if _has_earlier_date(run, taken.run)]
        kept = later[0] if later else len(self.chain)
        while kept and not _has_earlier_date(self.chain[kept - 1].run, run):
            kept -= 1
        return kept


def _has_earlier_date(run: Run, other: Run) -> bool:
    # A rewind names a run by its key, which tells nothing of the date of its partition.
    return run.day is not None and other.day is not None and run.day < other.day


def _known_and_new(base: Taken, files: Files) -> tuple[list[str], list[str]]:
    return [name for name in base.listed if name in files], sorted(files.keys() - base.listed.keys())


def _is_changed(base: Taken, files: Files) -> bool:
    """Return whether a later run cannot go on, because input that was read, or is still to be read, is another now."""
    vanished = {name for name in base.listed if name not in files}
    if any(name not in base.done for name in vanished):
        return True
    if any(files[n].version != f.version for n, f in base.listed.items() if n in files):
        return True
    # A directory from which files vanished while others appeared has been written anew.
    partitions = {base.listed[name].partition for name in vanished} - {None}
    return any(f.partition in partitions for n, f in files.items() if n not in base.listed)
