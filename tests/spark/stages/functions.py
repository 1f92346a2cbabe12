"""Functions of users, as Spark's tasks import them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.functions.user_functions import (
    CheckpointedFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    RichMapFunction,
)


class RunningBalance(KeyedProcessFunction[str, Any, Any]):
    """Gives the balance of an account after each payment, and how often each purpose was at the end."""

    @override
    def open(self, runtime_context: Any) -> None:
        self.balance = runtime_context.get_state(ValueStateDescriptor("balance", int, 0))
        self.purposes = runtime_context.get_map_state(MapStateDescriptor("purposes", str, int))

    @override
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        balance = self.balance.value() + value.amount
        self.balance.update(balance)
        self.purposes.put(value.purpose, (self.purposes.get(value.purpose) or 0) + 1)
        yield value.account, value.number, balance


class FinalBalance(RunningBalance):
    """Gives each account once, at the end."""

    @override
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        for _ in super().process_element(value, context):
            pass
        return ()

    @override
    def on_end_of_input(self, context: Any) -> Iterable[Any]:
        yield context.current_key, sum(self.purposes.values()), self.balance.value()


class BalanceInText(RunningBalance):
    """Keeps balances in another type than the other functions do."""

    @override
    def open(self, runtime_context: Any) -> None:
        runtime_context.get_state(ValueStateDescriptor("balance", str, ""))


class TimeOfElement(KeyedProcessFunction[str, Any, Any]):
    """Gives the time of each element in milliseconds."""

    @override
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        yield (context.timestamp(),)


class FailingOnce(RunningBalance):
    """Fails at one payment, unless it failed there before."""

    def __init__(self, marker: Path, number: int) -> None:
        self.marker = marker
        self.number = number

    @override
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        if value.number == self.number and not self.marker.exists():
            self.marker.touch()
            raise RuntimeError("planned")
        yield from super().process_element(value, context)


class FailingOnceOfClients(FailingOnce):
    """Finds the account of a payment in another column."""

    @override
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        payment = SimpleNamespace(**value._asdict(), account=value.client)
        return super().process_element(payment, context)


RATES: MapStateDescriptor[int] = MapStateDescriptor("rates", str, int)


class ConvertedBalance(KeyedBroadcastProcessFunction[str, Any, Any, Any]):
    """Adds up payments at the rates of their purposes, which are sums, so that a rate that comes twice is seen."""

    def __init__(self, marker: Path, number: int) -> None:
        self.marker = marker
        self.number = number

    @override
    def open(self, runtime_context: Any) -> None:
        self.balance = runtime_context.get_state(ValueStateDescriptor("balance", int, 0))

    @override
    def process_broadcast_element(self, value: Any, context: Any) -> Iterable[Any]:
        rates = context.get_broadcast_state(RATES)
        rates.put(value.purpose, (rates.get(value.purpose) or 0) + value.rate)
        return ()

    @override
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        if value.number == self.number and not self.marker.exists():
            self.marker.touch()
            raise RuntimeError("planned")
        rate = context.get_broadcast_state(RATES).get(value.purpose)
        self.balance.update(self.balance.value() + value.amount * rate)
        yield value.account, value.number, self.balance.value()


class RecentPayments(FailingOnce):
    """Counts the payments of an account in state that expires after two seconds."""

    @override
    def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        ttl = StateTtlConfig(timedelta(seconds=2))
        self.recent = runtime_context.get_list_state(ListStateDescriptor("recent", int, ttl=ttl))

    @override
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        for account, number, _ in super().process_element(value, context):
            self.recent.add(number)
            yield account, number, len(list(self.recent.get()))


class Visits(KeyedProcessFunction[str, Any, Any]):
    """
    Adds each place to a list in state, and gives the list.

    :param updates: Whether the list is put back whenever it was changed in place, and not the first time only.
    """

    def __init__(self, *, updates: bool) -> None:
        self.updates = updates

    @override
    def open(self, runtime_context: Any) -> None:
        self.places = runtime_context.get_state(ValueStateDescriptor[Any]("places", list[str], []))

    @override
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        places = self.places.value()
        places.append(value.place)
        if self.updates or len(places) == 1:
            self.places.update(places)
        yield value.person, " ".join(self.places.value())


class RunningBalanceOfTables(KeyedProcessFunction[str, Any, Any]):
    """Adds up payments on whole tables."""

    balance: ValueStateDescriptor[int] = ValueStateDescriptor("balance", int)

    @override
    def process_batch(self, table: Any, context: Any) -> Any:
        sums = table.group_by("account", use_threads=False).aggregate([("amount", "sum")]).combine_chunks()
        state = context.state(self.balance)
        added = pc.add(pc.coalesce(state.get(context.keys), 0), sums.column("amount_sum").combine_chunks())
        state.put(context.keys, added)
        return pa.table({"account": sums.column("account"), "balance": added})


class StatefulMapFunction(RichMapFunction[Any, str], CheckpointedFunction):
    """Flink's example of a function with keyed and operator state."""

    @override
    def initialize_state(self, context: Any) -> None:
        self.count = context.get_keyed_state_store().get_state(ValueStateDescriptor("count", int))
        self.buffer = context.get_operator_state_store().get_list_state(ListStateDescriptor("buffer", str))
        self.is_restored = context.is_restored()

    @override
    def snapshot_state(self, context: Any) -> None:
        self.checkpoint_id = context.get_checkpoint_id()

    @override
    def map(self, value: Any) -> str:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.buffer.add(value.account)
        return f"{value.account} (processed {count} times{', restored' if self.is_restored else ''})"


class Numbering(RichMapFunction[Any, Any], CheckpointedFunction):
    """Numbers what passes a subtask; it has operator state and no key."""

    @override
    def initialize_state(self, context: Any) -> None:
        self.seen = context.get_operator_state_store().get_list_state(ListStateDescriptor("seen", int))
        self.count = sum(self.seen.get())

    @override
    def snapshot_state(self, context: Any) -> None:
        self.seen.update([self.count])

    @override
    def map(self, value: Any) -> Any:
        self.count += 1
        return value
