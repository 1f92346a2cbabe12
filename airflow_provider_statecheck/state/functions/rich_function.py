"""What is common to functions that have a life: they are opened before the first element and closed after the last."""

from __future__ import annotations

from airflow_provider_statecheck.state.functions.runtime_context import RuntimeContext


class RichFunction:
    """Opened before the first element and closed after the last; both do nothing unless they are overridden."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """
        Prepare the work; called once, after the state was initialized.

        :param runtime_context: Which subtask this is, and its keyed state.
        """

    def close(self) -> None:
        """Give up what ``open`` took; called once, after a failure too."""
