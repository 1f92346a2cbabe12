"""Which state of a checkpoint belongs to which operator of the job: by uid first, else by id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState
from airflow_provider_statecheck.checkpoint.states.restore_target import RestoreTarget
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError, InvalidConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedStates:
    """Operators with their state, and what is left of both."""

    pairs: tuple[tuple[RestoreTarget, OperatorState], ...]
    new: tuple[RestoreTarget, ...]
    """Operators of which the checkpoint has no state."""
    unmatched: tuple[OperatorState, ...]
    """State of operators that are not to be restored, or that the job does not have any more."""


@dataclass(slots=True)
class _Matching:
    renamed_uids: Mapping[str, str]
    matches: dict[OperatorId, OperatorState] = field(default_factory=dict)

    def uid_of(self, state: OperatorState) -> str:
        return self.renamed_uids.get(state.uid, state.uid)

    def match(self, target: RestoreTarget, state: OperatorState) -> None:
        if target.operator_id in self.matches:
            raise _ambiguous(target, self.matches[target.operator_id], state)
        self.matches[target.operator_id] = state


def match_states(
    targets: Iterable[RestoreTarget],
    operator_states: Iterable[OperatorState],
    renamed_uids: Mapping[str, str] | None = None,
) -> MatchedStates:
    """
    Find the state of each operator.

    :param renamed_uids: New uids by old ones. An old one that the checkpoint does not have is passed over, so that a rename may
        stay where it is written when it has been done.
    :raises InvalidConfigurationError: if two operators have one uid or id.
    :raises IncompatibleCheckpointError: if the checkpoint has two states for one operator.
    """
    operators = tuple(targets)
    _require_unique(operators)
    matching = _Matching(renamed_uids or {})
    rest = _match_by_uid(matching, operators, operator_states)
    unmatched = _match_by_id(matching, operators, rest)
    found = matching.matches
    return MatchedStates(
        pairs=tuple((target, found[target.operator_id]) for target in operators if target.operator_id in found),
        new=tuple(target for target in operators if target.operator_id not in found),
        unmatched=tuple(unmatched),
    )


def _match_by_uid(
    matching: _Matching, operators: tuple[RestoreTarget, ...], states: Iterable[OperatorState]
) -> list[OperatorState]:
    by_uid = {target.uid: target for target in operators if target.uid}
    rest = []
    for state in states:
        target = by_uid.get(matching.uid_of(state))
        if target is None:
            rest.append(state)
        else:
            matching.match(target, state)
    return rest


def _match_by_id(
    matching: _Matching, operators: tuple[RestoreTarget, ...], states: list[OperatorState]
) -> list[OperatorState]:
    # Not for operators that found their state by uid, nor for state that a rename gives to another one.
    by_id = {target.operator_id: target for target in operators if target.operator_id not in matching.matches}
    unmatched = []
    for state in states:
        target = None if state.uid in matching.renamed_uids else by_id.get(state.operator_id)
        if target is None:
            unmatched.append(state)
        else:
            matching.match(target, state)
    return unmatched


def _require_unique(operators: tuple[RestoreTarget, ...]) -> None:
    uids = Counter(target.uid for target in operators if target.uid)
    ids = Counter(str(target.operator_id) for target in operators)
    for what, counter in (("uid", uids), ("id", ids)):
        twice = [value for value, times in counter.items() if times > 1]
        if twice:
            raise InvalidConfigurationError(
                f"Expected every operator to have a {what} of its own, found {', '.join(map(repr, twice))} twice; give one "
                f"of them another uid."
            )


def _ambiguous(target: RestoreTarget, first: OperatorState, second: OperatorState) -> IncompatibleCheckpointError:
    return IncompatibleCheckpointError(
        f"Expected one state for operator {(target.uid or target.operator_id)!r}, found those of {first.uid!r} and "
        f"{second.uid!r}; correct renamed_uids.",
        operator_id=target.operator_id,
    )
