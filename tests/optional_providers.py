"""What needs a provider that the environment of the tests may lack."""

from __future__ import annotations

from importlib.util import find_spec

# Its requirements contradict those of the newest Airflow.
_LACKS_GOOGLE = find_spec("airflow.providers.google") is None
_OF_GOOGLE = ("airflow_provider_statecheck.operators.google", "CheckpointedDataproc")


def is_importable(name: str) -> bool:
    """Return whether the provider of a module, or of a public name, is installed."""
    return not (_LACKS_GOOGLE and name.startswith(_OF_GOOGLE))
