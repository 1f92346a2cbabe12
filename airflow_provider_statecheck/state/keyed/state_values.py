"""The values of one state on their way in and out: checked and kept as the state's own, handed out as the reader's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.state.serializers.freezing import freezing_of
from airflow_provider_statecheck.state.serializers.optional import is_immutable
from airflow_provider_statecheck.state.serializers.owning import Own, own_of

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
    from airflow_provider_statecheck.state.serializers.serializer import TypeSerializer


class StateValues:
    """
    What a state does with its values, the same on every backend.

    A value that was put belongs to the state, and a value that was read belongs to the reader: to change one of them in place
    changes nothing but that object.

    :param state: The state.
    :param operator: What users call the operator, for errors.
    """

    __slots__ = ("_operator", "_state", "freeze", "own_user_key", "thaw")

    def __init__(self, state: RegisteredState, operator: str) -> None:
        self._state = state
        self._operator = operator
        # They are called for each element; a ``thaw`` of ``None`` spares the call.
        freezing = freezing_of(state.serializer)
        self.freeze = freezing.freeze
        self.thaw = freezing.thaw
        self.own_user_key = None if state.key_serializer is None else _own_user_key(state.key_serializer)

    def thawed(self, kept: Any) -> Any:
        """Return a value from what is kept of it, ``None`` from ``None``."""
        return kept if self.thaw is None or kept is None else self.thaw(kept)

    def misfit(self, key: Any, error: UnsupportedStateError) -> UnsupportedStateError:
        """
        Return the error of a value that is of another type than the state.

        :param key: On whose behalf it was put.
        :param error: What is wrong with it.
        """
        return misfit(self._state.title, self._operator, error, key=key)


def _own_user_key(serializer: TypeSerializer[Any]) -> Own:
    own = own_of(serializer)
    return own if is_immutable(serializer) else lambda user_key: _hashable(own(user_key))


def _hashable(user_key: Any) -> Any:
    try:
        hash(user_key)
    except TypeError as error:
        raise UnsupportedStateError(
            f"Expected a key of a map that cannot be changed, found {user_key!r}; use a number, a text, a tuple or a frozen "
            f"dataclass."
        ) from error
    return user_key


def misfit(state: str, operator: str, error: Exception, **key: Any) -> UnsupportedStateError:
    """
    Return the error of a value that does not fit the state into which it was put.

    :param state: Which state it is.
    :param operator: What users call the operator; empty where that is not known.
    :param error: What is wrong with the value.
    :param key: The key, where there is one.
    """
    owner = f" of the operator {operator!r}" if operator else ""
    place = f" for the key {key['key']!r}" if key else ""
    return UnsupportedStateError(f"A value was put into {state}{owner}{place} that does not fit: {error}")
