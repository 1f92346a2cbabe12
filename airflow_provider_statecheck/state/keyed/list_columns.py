"""Arrow lists from their elements."""

from __future__ import annotations

from typing import Any


def lists_of(elements: Any, parents: Any, length: int) -> Any:
    """
    Return lists of elements.

    :param parents: Arrow integers that tell for each element the index of its list, ascending.
    :param length: How many lists there are, empty ones included.
    """
    import numpy as np
    import pyarrow as pa

    lengths = np.bincount(parents.to_numpy(zero_copy_only=False), minlength=length)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype("int32")
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements)
