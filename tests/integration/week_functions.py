"""What the stages of a week of runs do, as Spark's tasks import it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.functions.user_functions import KeyedProcessFunction


@dataclass
class Account:
    """What is known of an account up to the fifth day."""

    balance: int = 0


@dataclass
class AccountWithLimit:
    """What is known of it from then on."""

    balance: int = 0
    limit: int = 100


class Balances(KeyedProcessFunction[str, Any, Any]):
    """
    Gives the balance of an account after each payment.

    :param record: The type of its state.
    :param fails_at: Where it is to fail, once: the number of a payment, and a file that says that it has.
    """

    def __init__(self, record: type[Any], fails_at: tuple[int, Path] | None = None) -> None:
        self.record = record
        self.fails_at = fails_at

    @override
    def open(self, runtime_context: Any) -> None:
        self.account = runtime_context.get_state(ValueStateDescriptor("account", self.record))

    @override
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        self._fail_once(value.number)
        account = self.account.value() or self.record()
        account.balance += value.amount
        self.account.update(account)
        yield value.account, value.number, account.balance

    def _fail_once(self, number: int) -> None:
        if self.fails_at is None or self.fails_at[0] != number or self.fails_at[1].exists():
            return
        self.fails_at[1].touch()
        raise RuntimeError("planned")
