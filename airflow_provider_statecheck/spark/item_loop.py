"""Loops over items: which finished items are kept, and which are worked on again after a change."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from enum import Enum
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.spark.checkpoint_interval import Rhythm
from airflow_provider_statecheck.spark.fingerprint import combined_fingerprint, described
from airflow_provider_statecheck.spark.loop_code import loop_code
from airflow_provider_statecheck.spark.status_log import readable_seconds
from airflow_provider_statecheck.spark.steps import StageSteps
from airflow_provider_statecheck.state.progress import ItemBasis, Scope, ScopedNames, StepKey, describe

log = logging.getLogger(__name__)

Item = TypeVar("Item")
_MOST_NAMES = 20


class Change(Enum):
    """How what a finished item depends on differs from what it was finished with."""

    NONE = "none"
    UNKNOWN = "unknown"
    """An older version of this package has finished the item."""
    OWN = "own"
    """The body, what it reads, or ``version``."""
    SINCE_EARLIER_RUN = "since an earlier run"
    """The body, since an earlier run of the job; each run recomputes the snapshots that it reads."""
    BEFORE = "before"
    """A step or loop before the loop that the body does not read by name."""


def change_since(known: ItemBasis | None, now: ItemBasis) -> Change:
    """
    Return how a finished item has changed.

    :param known: What it was finished with, ``None`` if that is unknown.
    :param now: What it would be finished with now.
    """
    if known is None:
        return Change.UNKNOWN
    if known.version != now.version:
        return Change.OWN
    if known.run != now.run:
        return Change.NONE if known.code == now.code else Change.SINCE_EARLIER_RUN
    if known.fingerprint != now.fingerprint:
        return Change.OWN
    return Change.BEFORE if now.changed_before(known) else Change.NONE


class ItemLoop:
    """
    Execution of ``each`` in one attempt.

    :param names: Names in use; each item has its own scope.
    :param context: The object that has the method ``each``; it and the session are no input of the body.
    :param release: Function that frees the cached DataFrames of a finished scope.
    :raises InvalidConfigurationError: for a ``version`` that is not text.
    """

    def __init__(
        self,
        steps: StageSteps,
        names: ScopedNames,
        loop: StepKey,
        *,
        version: str | None,
        context: object,
        release: Callable[[Scope], None],
    ) -> None:
        require("version", version, lambda each: bool(json.dumps(each)), "text, such as str(day)")
        self._steps = steps
        self._names = names
        self._loop = loop
        self._version = json.dumps(version)
        self._context = context
        self._release_memory = release

    def items(
        self, pairs: list[tuple[str, Item]], new_rhythm: Callable[[], Rhythm], monotonic: Callable[[], float]
    ) -> Iterator[Item]:
        """
        Yield the items that are not finished; each is finished when the next one is requested.

        :param pairs: Keys and items.
        :param new_rhythm: Function that returns the rhythm of the checkpoints, which begins with the first item.
        """
        rhythm = new_rhythm()
        basis = self._basis(sys._getframe(1))
        self._take_up(basis, [item_key for item_key, _ in pairs])
        for item_key, item in pairs:
            if self._steps.progress.is_finished(self._loop, item_key):
                continue
            began = monotonic()
            work = self._steps.working_on(((*self._loop[0], (self._loop[1], item_key)), ""))
            with work, self._names.inside(self._loop[1], item_key) as scope, self._salted():
                yield item
            self._steps.finish_item(self._loop, item_key, monotonic() - began, basis)
            self._release_memory(scope)
            if rhythm.is_time():
                self._steps.checkpoint_after_work()
                rhythm.taken()
        if rhythm.unsaved:
            self._steps.checkpoint_after_work()

    def _salted(self) -> AbstractContextManager[None]:
        # The steps inside follow the version; the body's code as such is left to their own fingerprints.
        if self._version == "null":
            return nullcontext()
        return self._steps.within(combined_fingerprint("each", self._version))

    def _basis(self, consumer: FrameType | None) -> ItemBasis:
        describe_value = partial(described, self._steps.snapshots.fingerprints())
        found = loop_code(consumer, describe_value, self._is_given)
        before = tuple(sorted(self._before()))
        parts = [found.with_inputs, self._version, self._steps.salt]
        # It is unknown what an unlocated body reads.
        parts += [] if found.is_located else [json.dumps(before)]
        fingerprint = combined_fingerprint(*parts)
        self._names.passed[self._loop] = fingerprint
        return ItemBasis(
            run=self._steps.run, version=self._version, code=found.code, fingerprint=fingerprint, before=before
        )

    def _is_given(self, value: object) -> bool:
        return value is self._context or value is self._steps.spark

    def _before(self) -> Iterator[tuple[str, str]]:
        """Yield the names and identities of the steps and loops before this one, in the scopes around it."""
        scope = self._loop[0]
        for step in self._names.used:
            if step != self._loop and step[0] == scope[: len(step[0])]:
                identity = self._names.passed.get(step) or self._steps.snapshots.identity(step)
                if identity:
                    yield describe(step), combined_fingerprint(identity)[:16]

    def _take_up(self, basis: ItemBasis, item_keys: list[str]) -> None:
        known = self._steps.progress.bases(self._loop, item_keys)
        changes: dict[Change, dict[str, ItemBasis | None]] = {}
        for key, each in known.items():
            changes.setdefault(change_since(each, basis), {})[key] = each
        if self._steps.verifies_fingerprints:
            self._follow(basis, changes)
        else:
            self._keep_all(changes)
        self._steps.progress.expect(self._loop, item_keys)
        self._say_what_is_finished(item_keys)

    def _say_what_is_finished(self, item_keys: list[str]) -> None:
        progress = self._steps.progress
        kept = [key for key in item_keys if progress.is_finished(self._loop, key)]
        if kept:
            share = len(kept) / progress.finished_of(self._loop)
            saved = readable_seconds(progress.seconds(self._loop) * share)
            items = counted(len(item_keys), "item")
            log.info("Loop %s restored: %d of %s; saved %s", describe(self._loop), len(kept), items, saved)

    def _follow(self, basis: ItemBasis, changes: Mapping[Change, Mapping[str, ItemBasis | None]]) -> None:
        if own := changes.get(Change.OWN):
            log.warning(
                "Loop %s: its body, what it reads or its version has changed since the items %s were finished; they "
                "are worked on again.",
                describe(self._loop),
                _named(own),
            )
            self._steps.progress.reopen(self._loop, own)
        self._keep_since_earlier_run(basis, changes.get(Change.SINCE_EARLIER_RUN, {}))
        self._keep_despite_steps_before(basis, changes.get(Change.BEFORE, {}))
        self._adopt(changes.get(Change.UNKNOWN, {}), lambda _: basis)

    def _keep_since_earlier_run(self, basis: ItemBasis, items: Mapping[str, ItemBasis | None]) -> None:
        if items:
            log.warning(
                "Loop %s keeps the items %s, which an earlier run has finished, although the code of its body has "
                "changed since; set another version= to work on them again.",
                describe(self._loop),
                _named(items),
            )
        self._adopt(items, lambda known: replace(known or basis, code=basis.code))

    def _keep_despite_steps_before(self, basis: ItemBasis, items: Mapping[str, ItemBasis | None]) -> None:
        steps = {name for known in items.values() if known for name in basis.changed_before(known)}
        if items:
            log.warning(
                "Loop %s keeps the finished items %s although %s before it has changed, which its body does not use by "
                "name; set another version= to work on them again.",
                describe(self._loop),
                _named(items),
                _named(steps),
            )
        self._adopt(items, lambda known: replace(known or basis, before=basis.before))

    def _adopt(self, items: Mapping[str, ItemBasis | None], now: Callable[[ItemBasis | None], ItemBasis]) -> None:
        for key, known in items.items():
            self._steps.progress.set_basis(self._loop, key, now(known))

    def _keep_all(self, changes: Mapping[Change, Mapping[str, Any]]) -> None:
        kept = [
            key for change, items in changes.items() for key in items if change not in (Change.NONE, Change.UNKNOWN)
        ]
        if kept:
            log.warning(
                "Loop %s keeps the finished items %s, as on_clear='resume' demands, although its body, what it reads, "
                "its version or a step before it has changed since.",
                describe(self._loop),
                _named(kept),
            )


def _named(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - _MOST_NAMES
    return ", ".join(ordered[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
