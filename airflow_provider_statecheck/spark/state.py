"""The small typed mapping that a stage saves with each checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from typing_extensions import override

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.storage.state_codec import decode_state, encode_state


class StageState(MutableMapping[str, Any]):
    """
    Values by name, restored exactly as they were, types included.

    Holds what :func:`~airflow_provider_statecheck.storage.state_codec.encode_state` can save: numbers, text, bytes,
    dates, decimals and collections of these. It is meant for cursors and counters, not for data.

    :raises UnsupportedStateError: on assignment of anything else.
    """

    def __init__(self, encoded: Any = None) -> None:
        self._values: dict[str, Any] = {} if encoded is None else decode_state(encoded)

    def encode(self) -> Any:
        """
        Return the mapping as JSON.

        :raises UnsupportedStateError: if a collection in it was changed to hold something that cannot be saved.
        """
        return encode_state(self._values)

    @override
    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    @override
    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise UnsupportedStateError(f"Expected the name of a state to be text, found {name!r}.")
        encode_state({name: value})
        self._values[name] = value

    @override
    def __delitem__(self, name: str) -> None:
        del self._values[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    @override
    def __len__(self) -> int:
        return len(self._values)

    @override
    def __repr__(self) -> str:
        return f"StageState({', '.join(sorted(self._values))})"
