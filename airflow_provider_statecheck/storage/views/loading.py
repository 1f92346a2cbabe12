"""Checkpoint storages and other factories by built-in name, entry point or dotted path."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.fs_storage import (
    FsCheckpointStorageAccess,
    MemoryBackendCheckpointStorageAccess,
)
from airflow_provider_statecheck.storage.views.state_files import (
    CheckpointStorageAccess,
    CheckpointStorageCoordinatorView,
    CheckpointStorageWorkerView,
)
from airflow_provider_statecheck.storage.views.state_streams import StateWriting

DEFAULT_STORAGE = "filesystem"
_METHODS = frozenset(
    name
    for view in (CheckpointStorageCoordinatorView, CheckpointStorageWorkerView)
    for name in vars(view)
    if not name.startswith("_")
)


class IdentifiedFactory(Protocol):
    """Factory that an entry point may name."""

    def get_identifier(self) -> str:
        """Return the name of the factory in configurations."""


Factory = TypeVar("Factory", bound=IdentifiedFactory)


@runtime_checkable
class CheckpointStorageFactory(IdentifiedFactory, Protocol):
    """
    Factory of the checkpoint storage of a job.

    ``execution.checkpointing.storage`` may name one by its dotted path.
    """

    def create_checkpoint_storage(
        self, storage: CheckpointStorage, attempt: AttemptRef, writing: StateWriting
    ) -> CheckpointStorageAccess:
        """Return the views for an attempt; called on the driver, before it does any work, and in each task."""


@dataclass(frozen=True, slots=True)
class NamedFactories(Generic[Factory]):
    """
    Factories of one kind, which a setting names.

    :param kind: Class or runtime-checkable protocol of the factories.
    :param setting: Key of the setting, for errors.
    :param known: Factories of this package by lower-case name.
    """

    kind: type[Factory]
    setting: str
    group: str
    known: Mapping[str, Factory]

    def find(self, name: Any) -> Factory:
        """
        Return the factory of a built-in name, an entry point or a dotted path, in this order.

        A factory is itself, and one of a class is an object of it.

        :raises InvalidConfigurationError: if no factory can be loaded, or that of an entry point has another name.
        """
        if isinstance(name, type):
            return self._create(name, name)
        if isinstance(name, self.kind):
            return name
        known = self.known.get(name.lower()) if isinstance(name, str) else None
        if known is None and (loaded := self._load_entry_point(name)) is not None:
            return self._identified(name, self._create(name, loaded))
        return self._create(name, known or self._import_path(name))

    def _load_entry_point(self, name: Any) -> Any:
        found = entry_points(group=self.group, name=name) if isinstance(name, str) else ()
        for entry_point in found:
            try:
                return entry_point.load()
            except (ImportError, AttributeError) as error:
                reason = f"its entry point {entry_point.value} cannot be imported: {error}"
                raise self._error(name, reason) from error
        return None

    def _import_path(self, name: Any) -> Any:
        if not isinstance(name, str) or "." not in name:
            raise self._error(name, "nothing has that name")
        module, _, attribute = name.replace(":", ".").rpartition(".")
        try:
            return getattr(importlib.import_module(module), attribute)
        except Exception as error:  # user code runs on import
            raise self._error(name, f"it cannot be imported: {error}") from error

    def _create(self, name: Any, found: Any) -> Factory:
        try:
            factory = found() if isinstance(found, type) else found
        except (StateCheckError, OSError):
            raise
        except Exception as error:
            raise self._error(name, f"its factory cannot be created: {error}") from error
        if not isinstance(factory, self.kind):
            raise self._error(name, f"it is not a {self.kind.__name__}, a method is missing")
        return factory

    def _identified(self, name: str, factory: Factory) -> Factory:
        if factory.get_identifier() != name:
            raise self._error(name, f"the factory of this entry point says that it is {factory.get_identifier()!r}")
        return factory

    def _error(self, name: Any, reason: str) -> InvalidConfigurationError:
        return InvalidConfigurationError(
            f"Expected in {self.setting} one of {', '.join(sorted(self.known))}, the name of an entry point of "
            f"{self.group}, or the dotted path of a {self.kind.__name__}, found {name!r}: {reason}; correct the "
            "setting."
        )


@dataclass(frozen=True, slots=True)
class _BuiltInFactory(CheckpointStorageFactory):
    identifier: str
    create: Callable[[CheckpointStorage, AttemptRef, StateWriting], CheckpointStorageAccess]

    @override
    def create_checkpoint_storage(
        self, storage: CheckpointStorage, attempt: AttemptRef, writing: StateWriting
    ) -> CheckpointStorageAccess:
        return self.create(storage, attempt, writing)

    @override
    def get_identifier(self) -> str:
        return self.identifier


_FILES = _BuiltInFactory(
    DEFAULT_STORAGE, lambda storage, attempt, writing: FsCheckpointStorageAccess(storage, attempt, writing=writing)
)
_MEMORY = _BuiltInFactory(
    "jobmanager", lambda storage, attempt, _: MemoryBackendCheckpointStorageAccess(attempt, storage)
)
CHECKPOINT_STORAGES: NamedFactories[CheckpointStorageFactory] = NamedFactories(
    CheckpointStorageFactory,  # type: ignore[type-abstract]
    CheckpointConfig.checkpoint_storage.key,
    "airflow_provider_statecheck.checkpoint_storages",
    {DEFAULT_STORAGE: _FILES, "jobmanager": _MEMORY, "memory": _MEMORY},
)


def load_checkpoint_storage(
    storage: CheckpointStorage, attempt: AttemptRef, config: CheckpointConfig
) -> CheckpointStorageAccess:
    """
    Return the configured checkpoint storage of a job, which the driver and the tasks of an attempt use alike.

    :raises InvalidConfigurationError: if the configured storage cannot be loaded, or lacks a method.
    """
    writing = StateWriting(
        epoch=attempt.epoch,
        inline_threshold=config.data_inline_threshold,
        write_buffer_size=config.write_buffer_size,
    )
    # A storage that is given as a directory is that of the attempt.
    named = config.checkpoint_storage if config.storage_dir != config.checkpoint_storage else None
    factory = CHECKPOINT_STORAGES.find(named or DEFAULT_STORAGE)
    return _complete(factory.create_checkpoint_storage(storage, attempt, writing), named)


def _complete(view: Any, named: Any) -> CheckpointStorageAccess:
    missing = sorted(name for name in _METHODS if not hasattr(view, name))
    if missing:
        raise InvalidConfigurationError(
            f"Expected from the factory {named!r} in {CheckpointConfig.checkpoint_storage.key} a "
            f"CheckpointStorageAccess, found {type(view).__name__} without {', '.join(missing)}; define them."
        )
    return cast(CheckpointStorageAccess, view)
