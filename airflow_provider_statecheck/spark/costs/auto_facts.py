"""What is known of the steps that are snapshotted only where it pays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.spark.scope import Scope, StepKey


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoFact:
    """What computing a step showed."""

    fingerprint: str
    """Of the code that was measured."""
    compute_seconds: float
    size_bytes: int | None
    """As Spark tells of the cached DataFrame; ``None`` where it does not."""


class AutoFacts:
    """
    The measured steps of a stage, so that a retry which knows nothing more decides the same.

    :param encoded: What :meth:`encode` gave.
    """

    def __init__(self, encoded: Any = ()) -> None:
        self._facts: dict[StepKey, AutoFact] = {
            (tuple((loop, item) for loop, item in scope), name): AutoFact(
                fingerprint=fingerprint, compute_seconds=seconds, size_bytes=size
            )
            for scope, name, fingerprint, seconds, size in encoded
        }

    def encode(self) -> list[Any]:
        """Return the facts as JSON."""
        return [
            [[list(pair) for pair in scope], name, fact.fingerprint, round(fact.compute_seconds, 3), fact.size_bytes]
            for (scope, name), fact in sorted(self._facts.items(), key=lambda entry: entry[0])
        ]

    def find(self, step: StepKey, fingerprint: str) -> AutoFact | None:
        """Return what is known of a step, unless it has changed since."""
        fact = self._facts.get(step)
        return fact if fact is not None and fact.fingerprint == fingerprint else None

    def remember(self, step: StepKey, fact: AutoFact) -> None:
        """Keep what computing a step showed."""
        self._facts[step] = fact

    def drop_scope(self, scope: Scope) -> None:
        """Forget the steps inside a finished item."""
        self._facts = {step: fact for step, fact in self._facts.items() if step[0][: len(scope)] != scope}
