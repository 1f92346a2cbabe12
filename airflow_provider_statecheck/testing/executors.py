"""Executors whose work runs when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class InlineExecutor(Executor):
    """Runs what is submitted at once, in the thread that submits it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a call and return a future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class HeldExecutor(Executor):
    """Keeps what is submitted until it is told to run it."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Keep a call."""
        future: Future[Any] = Future()
        self.held.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run_next(self) -> None:
        """Run the oldest call that is kept."""
        future, call = self.held.pop(0)
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    def run_all(self) -> None:
        """Run what is kept, and what that submits, until nothing is left."""
        while self.held:
            self.run_next()
