"""
PyArrow, NumPy and HTTPX, loaded when code first uses them.

A Dag file loads modules that need PyArrow and NumPy only at run time, and parsing it must not load either. A cluster
may lack HTTPX, because only drivers that reach the coordinator over HTTP need it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["httpx", "np", "pa", "parquet", "pc"]


class _LazyModule:
    """
    Stand-in for a module that is imported when its first attribute is read.

    :param name: Full name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        # Later reads find the attribute without this method.
        setattr(self, attribute, value)
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        # Functions that are pickled by value take their global names along.
        return type(self), (self._name,)


if TYPE_CHECKING:
    import httpx
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet
else:
    httpx = _LazyModule("httpx")
    np = _LazyModule("numpy")
    pa = _LazyModule("pyarrow")
    pc = _LazyModule("pyarrow.compute")
    parquet = _LazyModule("pyarrow.parquet")
