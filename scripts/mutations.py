"""How fuzzers change a message: odd values in its fields, at any depth, or plain bytes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

ODD_INTEGERS = [0, 1, 2, 3, 127, 128, 10_000, 2**28, 2**31 - 1, 2**32 - 2, 2**32 - 1]
ODD_FLOATS = [0.0, -0.0, 1.0, -1.0, 1e308, -1e308, float("nan"), float("inf"), float("-inf"), 5e-324, 1e15]
ODD_TEXTS = ["", "Loss", "error/Loss", "cost/Loss", "GradNorm", "Alpha", "a", "\x1b[31mX", "x" * 300, "\u202e", "step"]
ODD_TEXTS += ["constructor", "__proto__", "HessMaxEV", "GradHist1d", "histogram2d", "<b>", "finished"]


def mutate_field(message: Any, chance: random.Random) -> None:
    """Set, add, drop or double one field, at any depth."""
    field = chance.choice(message.DESCRIPTOR.fields)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(message, field.name)[chance.choice(ODD_TEXTS)] = chance.choice(ODD_TEXTS)
    elif chance.random() < 0.1:
        message.ClearField(field.name)
    elif field.message_type is not None:
        mutate_message(message, field, chance)
    elif field.is_repeated:
        getattr(message, field.name).extend([make_value(field, chance)] * chance.choice([1, 1, 2, 40]))
    else:
        setattr(message, field.name, make_value(field, chance))


def mutate_message(message: Any, field: FieldDescriptor, chance: random.Random) -> None:
    target = getattr(message, field.name)
    if not field.is_repeated:
        target.SetInParent()
        mutate_field(target, chance)
    elif target and chance.random() < 0.7:
        mutate_field(chance.choice(target), chance)
    else:
        mutate_field(target.add(), chance)


def make_value(field: FieldDescriptor, chance: random.Random) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_DOUBLE:
        return chance.choice(ODD_FLOATS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return chance.randbytes(8 * chance.randrange(4))
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return chance.choice(ODD_TEXTS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return chance.randrange(8)
    return chance.choice(ODD_INTEGERS) if chance.random() < 0.6 else chance.randrange(6)


def mutate_values(batch: Any, chance: random.Random) -> None:
    """Odd numbers among the values of one column, or of the rows: they are read, so that panels see them."""
    arrays = [column.values for column in batch.columns] + [batch.time, batch.wall_time, batch.epoch]
    arrays += [array for h in batch.histograms if not h.edges.codec for array in (h.edges, h.parameter_edges)]
    arrays = [array for array in arrays if array.data and array.dtype == 1 and not array.codec]
    if not arrays:
        return
    array = chance.choice(arrays)
    values = np.frombuffer(array.data, "<f8").copy()
    first = chance.randrange(values.size)
    values[first : first + chance.choice([1, 1, 5, values.size])] = chance.choice(ODD_FLOATS)
    array.data = values.tobytes()


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice([1, 2, 8])):
        at = chance.randrange(len(changed))
        move = chance.random()
        if move < 0.5:
            changed[at] = chance.randrange(256)
        elif move < 0.7:
            del changed[at : at + chance.choice([1, 3, 50])]
        else:
            changed[at:at] = chance.randbytes(chance.choice([1, 2, 8]))
        if not changed:
            return b"\x00"
    return bytes(changed)
