"""
Seeds of random cases.

``make test`` tries some fixed seeds, and ``make soak`` new ones for a time. A failure names its seed, and ``SEED=<seed>
make soak`` with the arguments of the test repeats it.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

log = logging.getLogger(__name__)


def new_seeds(seconds: float) -> Iterator[int]:
    """Yield seeds from a logged one on until a time is over, or the one that is given."""
    given, end = os.environ.get("SEED"), time.monotonic() + seconds
    first = random.SystemRandom().randrange(10**9) if given is None else int(given)
    log.warning("The first seed is %s.", first)
    for seed in count(first):
        yield seed
        if given is not None or time.monotonic() > end:
            return


def folder_for(folder: Path, seed: int) -> Path:
    """Return a new folder for the case of a seed."""
    own = folder / str(seed)
    own.mkdir()
    return own


@contextmanager
def named_in_failure(seed: int, happened: Iterable[str] = ()) -> Iterator[None]:
    """
    Let a failure name its seed.

    :param happened: What the failure also tells, as it is when the block ends.
    """
    try:
        yield
    except Exception as error:
        error.add_note("\n".join([f"Repeat with SEED={seed}.", *happened]))
        raise
