"""The types of state that a checkpoint speaks of: those of today, and of what nobody asks for any more but is kept."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from airflow_provider_statecheck.state.evolution import report, require_compatible
from airflow_provider_statecheck.state.schemas import OperatorSchemas, StateSchema

log = logging.getLogger(__name__)


def carried_schemas(
    restored: Mapping[str, OperatorSchemas], today: Mapping[str, OperatorSchemas]
) -> dict[str, OperatorSchemas]:
    """
    Compare the types of restored state with those of today, before anything is read, and return what is saved with it.

    :param restored: By the uid of the operator.
    :param today: By the uid of the operator.
    :raises StateMigrationError: if an operator cannot go on with its state, naming the state and both types.
    """
    return {uid: _carried(uid, restored.get(uid), new) for uid, new in today.items()}


def _carried(uid: str, old: OperatorSchemas | None, new: OperatorSchemas) -> OperatorSchemas:
    if old is None:
        return new
    found = require_compatible(old, new, uid)
    if found:
        log.info("State of %s is restored:\n%s", uid, report(found))
    return replace(new, keyed=_with_kept(old.keyed, new.keyed), operator=_with_kept(old.operator, new.operator))


def _with_kept(old: Iterable[StateSchema], new: tuple[StateSchema, ...]) -> tuple[StateSchema, ...]:
    names = {state.name for state in new}
    return (*new, *(state for state in old if state.name not in names))
