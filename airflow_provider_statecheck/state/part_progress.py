"""Progress of steps that are computed in parts: listed input, finished and failed parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_statecheck.state.loop_progress import Scope, StepKey
from airflow_provider_statecheck.storage.state_json import decode_state, encode_state

Pieces = Sequence[Sequence[int]]
"""Items and row groups of a part as plain values, as the enumerator of its source encodes them."""


@dataclass(frozen=True, slots=True)
class BadPart:
    """A part that failed and is left to a later try."""

    input: tuple[str, ...]
    """Names of its items, with the rows that it reads of each as far as they are known."""
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedStep:
    """A step that is computed in parts."""

    fingerprint: str
    """Fingerprint of the code and of the input."""
    listed: Mapping[str, Any]
    """State of the source before the first part; it lists the input that all tries read."""
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
        """Return the largest number of a finished part, 0 if there is none."""
        return max(self.finished, default=0)


class PartProgress:
    """
    Progress of all steps of a stage that are computed in parts.

    :param encoded: Return value of :meth:`encode`.
    """

    def __init__(self, encoded: Any = ()) -> None:
        self._steps: dict[StepKey, PartedStep] = {
            (tuple((loop, item) for loop, item in scope), name): _decoded(content) for scope, name, content in encoded
        }

    def encode(self) -> list[Any]:
        """Return the progress as JSON."""
        return [
            [[list(pair) for pair in scope], name, _encoded(parted)]
            for (scope, name), parted in sorted(self._steps.items(), key=lambda entry: entry[0])
        ]

    def find(self, step: StepKey) -> PartedStep | None:
        """Return the progress of a step, ``None`` for a step that was not computed in parts."""
        return self._steps.get(step)

    def record(self, step: StepKey, parted: PartedStep) -> None:
        """Record the progress of a step."""
        self._steps[step] = parted

    def forget(self, step: StepKey) -> None:
        """Drop a step."""
        self._steps.pop(step, None)

    def drop_scope(self, scope: Scope) -> None:
        """Drop the steps inside a finished item."""
        self._steps = {step: parted for step, parted in self._steps.items() if step[0][: len(scope)] != scope}

    def keep(self, steps: Collection[StepKey]) -> None:
        """Drop all steps but the given ones."""
        self._steps = {step: parted for step, parted in self._steps.items() if step in steps}


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
        listed=decode_state(content["listed"]),
        finished={int(number): pieces for number, pieces in content["finished"]},
        bad=tuple(BadPart(tuple(names), error) for names, error in content["bad"]),
        share=float(content["share"]),
    )
