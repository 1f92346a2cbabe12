"""State server: reads the values of single keys from the files of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, UnknownKvStateIdError
from airflow_provider_statecheck.queryable.locations import KvStateAddress, OpenStorage
from airflow_provider_statecheck.queryable.opened_state import KeyInGroup, OpenedState
from airflow_provider_statecheck.queryable.state_cache import StateCache
from airflow_provider_statecheck.state.arrow.part_files import PartBytes


class KvStateServer:
    """
    Reads keys at an address. Of a file, only the blocks of the requested keys are read.

    Safe for threads. Several servers may share a cache.

    :param open_storage: Opens the storage of a checkpoint.
    :param cache: Opened states and blocks, by default with the default bounds.
    """

    def __init__(self, open_storage: OpenStorage, cache: StateCache | None = None) -> None:
        self._open_storage = open_storage
        self._cache = cache or StateCache()

    def read(
        self, address: KvStateAddress, keys: Sequence[KeyInGroup], namespace: str = "", user_key: Any = None
    ) -> list[Any]:
        """
        Return the value of each key, :data:`ABSENT` for a key without one. Expiry is decided by the time of the checkpoint.

        Values need no class of the user: a record is a dictionary, an enum member its name, and the value of a custom
        serializer bytes. A map is a dictionary, and the value of an aggregating state its accumulator.

        :param keys: Keys in normal form with their key groups; the address covers all of these key groups.
        :param user_key: Key of the map entry to return; ``None`` for all entries.
        :raises UnknownKvStateIdError: if the files of the checkpoint are gone.
        :raises InvalidConfigurationError: if there is a user key, but the state is no map.
        :raises UnsupportedStateError: if the user key does not fit its type, or this release does not support a type.
        :raises LocationNotAllowedError: if a file is not in an allowed location.
        :raises CorruptStateError: if a file is corrupt.
        :raises IncompatibleCheckpointError: if a newer version wrote a file.
        :raises StorageError: if the storage fails.
        """
        try:
            return self._cache.state_at(address, lambda: self._opened(address)).read(keys, namespace, user_key)
        except CheckpointNotFoundError as error:
            raise UnknownKvStateIdError(
                f"Expected the state files of checkpoint {address.checkpoint_id} at {address.pointer}, found that they are "
                f"deleted; look the location up again, because a newer checkpoint may have subsumed it.",
                kv_state_id=address.kv_state_id,
            ) from error

    def _opened(self, address: KvStateAddress) -> OpenedState:
        storage = self._open_storage(address.pointer)
        return OpenedState(address.content, storage, PartBytes(storage, self._cache.files), self._cache.blocks)
