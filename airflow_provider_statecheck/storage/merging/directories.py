"""Directories of a manager, and which checkpoints may have files in them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from airflow_provider_statecheck.storage.merging.bodies import is_local, local_path

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class ManagedDirectory:
    """
    A directory and the checkpoints that refer to it.

    Ids rather than a number of them: a notification that is lost or comes twice must not change the count.
    """

    uri: str
    checkpoint_ids: set[int] = field(default_factory=set)

    def refer(self, checkpoint_id: int) -> None:
        """Note that a checkpoint may have files here."""
        self.checkpoint_ids.add(checkpoint_id)

    def forget(self, checkpoint_id: int) -> None:
        """Note that a checkpoint is not needed."""
        self.checkpoint_ids.discard(checkpoint_id)

    def subsume(self, checkpoint_id: int) -> None:
        """Note that neither this checkpoint nor an older one is needed."""
        self.checkpoint_ids = {i for i in self.checkpoint_ids if i > checkpoint_id}

    def remove_if_unused(self) -> None:
        """Remove it if no checkpoint refers to it and nothing is in it; object stores have no directories."""
        if self.checkpoint_ids or not is_local(self.uri):
            return
        try:
            # Never with what is in it: another attempt may write here.
            local_path(self.uri).rmdir()
        except OSError as error:
            log.debug("The directory of merged files stays: %s", type(error).__name__)
