"""The names under which operator states stand in a checkpoint, where lists and broadcast maps share one name space."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.states.handles import DistributionMode

_BROADCAST = "broadcast/"
_LIST = "list/"


def stored_name(name: str, mode: DistributionMode) -> str:
    """Return a name that no other state of the operator has; that of a list is its own unless it looks like a made one."""
    if mode is DistributionMode.BROADCAST:
        return _BROADCAST + name
    return _LIST + name if name.startswith((_BROADCAST, _LIST)) else name
