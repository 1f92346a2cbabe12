"""Loading of state backends by name, entry point or dotted path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_statecheck.checkpoint.config import STORAGE_KEYS
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.state.arrow.layout import PREFIX as ARROW_PREFIX
from airflow_provider_statecheck.state.backends.state_backend import (
    ConfigurableStateBackend,
    StateBackend,
    StateBackendFactory,
)
from airflow_provider_statecheck.storage.views.loading import NamedFactories

BACKEND_KEYS = ("state.backend.type", "state.backend")
"""Settings that name a backend, in order of precedence."""
DEFAULT_BACKEND = "arrow"
ENTRY_POINT_GROUP = "airflow_provider_statecheck.state_backends"


class MemoryStateBackendFactory(StateBackendFactory):
    """Factory of the ``memory`` backend."""

    @override
    def create_from_config(self, config: Mapping[str, Any]) -> StateBackend:
        from airflow_provider_statecheck.state.backends.file_state_backends import MemoryStateBackend

        return MemoryStateBackend(config=config)

    @override
    def get_identifier(self) -> str:
        return "memory"


class FsStateBackendFactory(StateBackendFactory):
    """Factory of the ``filesystem`` backend."""

    @override
    def create_from_config(self, config: Mapping[str, Any]) -> StateBackend:
        from airflow_provider_statecheck.state.backends.file_state_backends import FsStateBackend

        return FsStateBackend(config=config)

    @override
    def get_identifier(self) -> str:
        return "filesystem"


class ArrowStateBackendFactory(StateBackendFactory):
    """Factory of the ``arrow`` backend."""

    @override
    def create_from_config(self, config: Mapping[str, Any]) -> StateBackend:
        from airflow_provider_statecheck.state.arrow.keyed_backend import ArrowStateBackend

        return ArrowStateBackend().configure(config)

    @override
    def get_identifier(self) -> str:
        return DEFAULT_BACKEND


_BACKENDS: NamedFactories[StateBackendFactory] = NamedFactories(
    StateBackendFactory,  # type: ignore[type-abstract]
    BACKEND_KEYS[1],
    ENTRY_POINT_GROUP,
    {
        "memory": MemoryStateBackendFactory,
        "jobmanager": MemoryStateBackendFactory,
        "hashmap": MemoryStateBackendFactory,
        "filesystem": FsStateBackendFactory,
        "fs": FsStateBackendFactory,
        "arrow": ArrowStateBackendFactory,
    },
)


def load_state_backend(application: StateBackend | None, config: Mapping[str, Any]) -> StateBackend:
    """
    Return the configured backend.

    :param application: Backend set in code, or ``None``; its unset fields are taken from the configuration.
    :param config: Settings by key.
    :raises InvalidConfigurationError: if the configured backend cannot be loaded.
    """
    if application is not None:
        return application.configure(config) if isinstance(application, ConfigurableStateBackend) else application
    return factory_of(_backend_name(config)).create_from_config(config)


def backend_of_stage(wanted: StateBackend | str | None, config: Mapping[str, Any]) -> StateBackend:
    """
    Return the backend of a stage.

    :param wanted: Backend or name that the stage declares; ``None`` for the configured backend.
    :param config: Settings by key; a declared name takes precedence.
    :raises InvalidConfigurationError: if the backend cannot be loaded, or has its own directories.
    """
    if isinstance(wanted, str):
        wanted, config = None, {**config, BACKEND_KEYS[0]: wanted}
    _require_known_settings(config)
    backend = load_state_backend(wanted, config)
    paths = [name for name in ("checkpoint_path", "savepoint_path") if getattr(backend, name, None) is not None]
    if paths:
        raise InvalidConfigurationError(
            f"Expected {type(backend).__name__} without directories in a stage, found base_{paths[0]}; leave the path out, "
            f"because a stage writes to its checkpoint_dir and savepoint_dir.",
            key=f"base_{paths[0]}",
        )
    return backend


def _backend_name(config: Mapping[str, Any]) -> Any:
    return next((config[key] for key in BACKEND_KEYS if config.get(key) is not None), DEFAULT_BACKEND)


def _require_known_settings(config: Mapping[str, Any]) -> None:
    name = _backend_name(config)
    if str(name).lower() not in _BACKENDS.known:
        return  # custom factories validate their own settings
    for key in config:
        if key not in STORAGE_KEYS and key not in BACKEND_KEYS and not key.startswith(ARROW_PREFIX):
            raise InvalidConfigurationError(
                f"Expected only settings of the state backend {name!r}, found {key}; remove it.",
                key=key,
            )


def factory_of(name: Any) -> StateBackendFactory:
    """
    Return the factory of a built-in name, an entry point or a dotted path, in this order.

    :raises InvalidConfigurationError: if no factory can be loaded.
    """
    return _BACKENDS.find(name)
