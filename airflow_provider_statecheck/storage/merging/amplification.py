"""How much more space files take than what is needed of them, and which ones to give up."""

from __future__ import annotations

import math
from collections.abc import Iterable

from airflow_provider_statecheck.storage.merging.files import PhysicalFile


def files_to_give_up(files: Iterable[PhysicalFile], max_amplification: float) -> list[PhysicalFile]:
    """
    Return the files whose segments shall be written anew, so that the space comes under its limit.

    Those with the largest wasted share come first. A file that was given up before counts as if it were gone already.

    :param files: Files of the manager, without those of others.
    :param max_amplification: Physical bytes for each logical byte; infinity sets no limit.
    """
    known = list(files)
    limit = max_amplification * sum(f.live_bytes for f in known)
    if math.isinf(max_amplification) or not limit:
        return []
    projected = sum(f.body.size if f.is_reusable else f.live_bytes for f in known)
    chosen: list[PhysicalFile] = []
    for file in sorted((f for f in known if f.is_reusable and f.wasted_bytes), key=_wasted_share, reverse=True):
        if projected <= limit:
            break
        projected -= file.wasted_bytes
        chosen.append(file)
    return chosen


def _wasted_share(file: PhysicalFile) -> float:
    return file.wasted_bytes / file.body.size
