"""Messages of one version of the API, translated into another: fields of the same name correspond.

The versions number the fields of queues and tasks differently. Most other messages have the same
layout in all versions, and are copied as bytes.
"""

import functools
from typing import Any

from google.protobuf import message_factory


def translated(source: Any, target_type: Any) -> Any:
    """Return a message of another type with the fields that both types have."""
    target = target_type()
    copy_fields(source, target)
    return target


def copy_fields(source: Any, target: Any) -> None:
    """Copy the fields that both messages have."""
    if _have_one_layout(source.DESCRIPTOR, target.DESCRIPTOR):
        target.MergeFromString(source.SerializeToString())
        return
    for field, value in source.ListFields():
        if field.name in target.DESCRIPTOR.fields_by_name:
            _copy_field(field, value, target)


def _copy_field(field: Any, value: Any, target: Any) -> None:
    if field.message_type is None:
        if field.is_repeated:
            getattr(target, field.name).extend(value)
        else:
            setattr(target, field.name, value)
    elif field.is_repeated:
        for member in value:
            copy_fields(member, getattr(target, field.name).add())
    else:
        inner = getattr(target, field.name)
        inner.SetInParent()
        copy_fields(value, inner)


@functools.cache
def _have_one_layout(one: Any, other: Any) -> bool:
    """Return whether the bytes of one message mean the same as the other."""
    if one is other:
        return True
    if _layout(one) != _layout(other):
        return False
    return all(
        _have_one_layout(field.message_type, other.fields_by_name[field.name].message_type)
        for field in one.fields
        if field.message_type is not None
    )


def _layout(descriptor: Any) -> set[tuple[str, int, int, bool]]:
    return {
        (field.name, field.number, field.type, field.is_repeated) for field in descriptor.fields
    }


def retype(any_message: Any, package: str, pool: Any) -> None:
    """Turn a packed message into its namesake of another package, where there is one."""
    own_package, _, name = any_message.TypeName().rpartition(".")
    if own_package == package:
        return
    try:
        types = [
            pool.FindMessageTypeByName(f"{origin}.{name}") for origin in (own_package, package)
        ]
    except KeyError:
        return
    source_type, target_type = map(message_factory.GetMessageClass, types)
    source = source_type.FromString(any_message.value)
    any_message.Pack(translated(source, target_type))
