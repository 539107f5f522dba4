"""Queries: their form, their bounds, and answers of at most 300 results."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud.datastore_v1.types import (
    CompositeFilter,
    EntityResult,
    PropertyFilter,
    PropertyOrder,
    QueryResultBatch,
)

from benchmarks.memory.rows import Form, Rows, Stored
from benchmarks.memory.values import (
    KEY,
    KEY_PROPERTY,
    Descending,
    Path,
    Value,
    indexed_values,
    path_of,
    plain,
    set_value,
    value_of,
)

MOST_RESULTS = 300
_Op = PropertyFilter.Operator
_More = QueryResultBatch.MoreResultsType
_FROM, _TO = (_Op.GREATER_THAN, _Op.GREATER_THAN_OR_EQUAL), (_Op.LESS_THAN, _Op.LESS_THAN_OR_EQUAL)


@dataclass(frozen=True)
class Plan:
    """A query in terms of its index.

    Attributes:
        same: The values of the index's first properties.
        ranges: Operators and values for the property after them.
        further: Conditions to check entity by entity.
        ancestor: The key of an ancestor of all results, or ().
    """

    form: Form
    same: tuple[Value, ...]
    ranges: Sequence[tuple[int, Any]]
    further: Sequence[tuple[str, int, Value]]
    ancestor: Path

    def low(self) -> tuple[Any, ...]:
        """Return the lower bound of a scan."""
        lows = [value for operator, value in self.ranges if self._is_begin(operator)]
        if not self.form.orders and self.ancestor:
            lows.append(self.ancestor)
        return (*self.same, max(lows)) if lows else self.same

    def _is_begin(self, operator: int) -> bool:
        is_down = bool(self.form.orders) and self.form.orders[0][1]
        return operator in (_TO if is_down else _FROM)

    def matches(self, entry: tuple[Any, ...], entity: Any) -> bool | None:
        """Return whether an entry is a result, or None if neither it nor a later one is."""
        count = len(self.same)
        if entry[:count] != self.same:
            return None
        part = entry[count]
        for operator, value in self.ranges:
            if not _holds(part, operator, value):
                return False if self._is_begin(operator) else None
        path = entry[-1]
        if self.ancestor and path[: len(self.ancestor)] != self.ancestor:
            return False if self.form.orders else None
        return all(
            any(_holds(value, operator, bound) for value in indexed_values(entity, name))
            for name, operator, bound in self.further
        )


def _holds(value: Any, operator: int, bound: Any) -> bool:
    if isinstance(bound, Descending):
        value, bound = value.value, bound.value
    match operator:
        case _Op.EQUAL:
            return bool(value == bound)
        case _Op.GREATER_THAN:
            return bool(value > bound)
        case _Op.GREATER_THAN_OR_EQUAL:
            return bool(value >= bound)
        case _Op.LESS_THAN:
            return bool(value < bound)
        case _Op.LESS_THAN_OR_EQUAL:
            return bool(value <= bound)
        case other:
            raise NotImplementedError(f"operator {_Op(other).name}")


def _filters(query_filter: Any) -> Iterator[Any]:
    """Yield the property filters of a conjunction."""
    kind = query_filter.WhichOneof("filter_type")
    if kind == "property_filter":
        yield query_filter.property_filter
    elif kind == "composite_filter":
        composite = query_filter.composite_filter
        if composite.op != CompositeFilter.Operator.AND:
            raise NotImplementedError("a filter with OR")
        for part in composite.filters:
            yield from _filters(part)


def plan_of(namespace: str, query: Any) -> Plan:
    """Return the plan for a query.

    Raises:
        NotImplementedError: this store does not support its form.
    """
    if len(query.kind) != 1:
        raise NotImplementedError("a query without a kind")
    same: dict[str, Value] = {}
    unequal: list[tuple[str, int, Value]] = []
    further: list[tuple[str, int, Value]] = []
    ancestor: Path = ()
    for condition in _filters(query.filter):
        name, value = condition.property.name, value_of(condition.value)
        if condition.op == _Op.HAS_ANCESTOR:
            ancestor = path_of(condition.value.key_value)
        elif condition.op == _Op.EQUAL and name not in same and name != KEY_PROPERTY:
            same[name] = value
        elif condition.op == _Op.EQUAL:
            further.append((name, condition.op, value))
        else:
            unequal.append((name, condition.op, value))
    orders = [
        (order.property.name, order.direction == PropertyOrder.Direction.DESCENDING)
        for order in query.order
    ]
    if not orders:
        orders = [(name, False) for name, *_ in unequal if name != KEY_PROPERTY][:1]
    indexed = [name for name, _ in orders] + list(same)
    orders += [
        (projected.property.name, False)
        for projected in query.projection
        if projected.property.name not in (*indexed, KEY_PROPERTY)
    ]
    if orders and orders[-1] == (KEY_PROPERTY, False):
        orders.pop()  # Each index ends with the key.
    ranged, is_down = orders[0] if orders else (KEY_PROPERTY, False)
    ranges = [(op, _bound(name, value, is_down)) for name, op, value in unequal if name == ranged]
    if not orders:  # The entry has the bare key there.
        ranges = [(op, value[1]) for op, value in ranges]
    further += [condition for condition in unequal if condition[0] != ranged]
    names = tuple(sorted(same))
    form = Form((namespace, query.kind[0].name), names, tuple(orders))
    return Plan(form, tuple(same[name] for name in names), ranges, further, ancestor)


def _bound(name: str, value: Value, is_down: bool) -> Any:
    if name == KEY_PROPERTY and value[0] != KEY:
        raise NotImplementedError("a key that is compared with another value")
    return Descending(value) if is_down else value


def answer(rows: Rows, namespace: str, query: Any, at: int | None, batch: Any) -> list[Path]:
    """Write one answer to a query into `batch`; return the keys of its results."""
    plan = plan_of(namespace, query)
    limit = query.limit.value if query.HasField("limit") else None
    begin, end = _cursor(query.start_cursor), _cursor(query.end_cursor)
    keys, seen = list[Path](), set[Any]()
    skipped, end_cursor, more_results = 0, query.start_cursor, _More.NO_MORE_RESULTS
    low = plan.low() if begin is None else max(plan.low(), _directed(plan, begin))
    for entry, stored in rows.scan(plan.form, low, at):
        matched = plan.matches(entry, stored.entity)
        at_end = end is not None and _directed(plan, end) < entry
        if matched is None or at_end:
            break
        group = _group(plan, query, entry)
        if not matched or group in seen or (begin is not None and plain(entry) == begin):
            continue
        if limit is not None and len(keys) == limit:
            more_results = _More.MORE_RESULTS_AFTER_LIMIT
            break
        if len(keys) == MOST_RESULTS:
            more_results = _More.NOT_FINISHED
            break
        seen.add(group)
        end_cursor = repr(plain(entry)).encode()
        if skipped < query.offset:
            skipped += 1
            continue
        keys.append(entry[-1])
        _add(batch, plan, query, entry, stored)
    if limit is not None and len(keys) == limit:
        more_results = _More.MORE_RESULTS_AFTER_LIMIT
    batch.entity_result_type = _result_type(query)
    batch.more_results, batch.end_cursor, batch.skipped_results = more_results, end_cursor, skipped
    return keys


def _cursor(cursor: bytes) -> tuple[Any, ...] | None:
    return ast.literal_eval(cursor.decode()) if cursor else None


def _directed(plan: Plan, entry: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a cursor's entry with the sort directions of its index."""
    begin = len(plan.same)
    downs = {begin + n for n, (_, is_down) in enumerate(plan.form.orders) if is_down}
    return tuple(Descending(part) if n in downs else part for n, part in enumerate(entry))


def _group(plan: Plan, query: Any, entry: tuple[Any, ...]) -> Any:
    """Return the identity of a result: its key, or its values of the distinct properties."""
    if not query.distinct_on:
        is_projection = _result_type(query) == EntityResult.ResultType.PROJECTION
        return plain(entry) if is_projection else entry[-1]
    values = dict(zip(_names(plan), plain(entry), strict=False))
    return tuple(values[grouped.name] for grouped in query.distinct_on)


def _names(plan: Plan) -> list[str]:
    return [*plan.form.same, *(name for name, _ in plan.form.orders)]


def _result_type(query: Any) -> Any:
    names = [projected.property.name for projected in query.projection]
    if not names:
        return EntityResult.ResultType.FULL
    return (
        EntityResult.ResultType.KEY_ONLY
        if names == [KEY_PROPERTY]
        else EntityResult.ResultType.PROJECTION
    )


def _add(batch: Any, plan: Plan, query: Any, entry: tuple[Any, ...], stored: Stored) -> None:
    result = batch.entity_results.add(version=stored.version, cursor=repr(plain(entry)).encode())
    kind = _result_type(query)
    if kind == EntityResult.ResultType.FULL:
        result.entity.CopyFrom(stored.entity)
        return
    result.entity.key.CopyFrom(stored.entity.key)
    if kind == EntityResult.ResultType.PROJECTION:
        values = dict(zip(_names(plan), plain(entry), strict=False))
        for projected in query.projection:
            name = projected.property.name
            set_value(result.entity.properties[name], values[name])
