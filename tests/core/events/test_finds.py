"""What fuzzing found, each as the smallest log that showed it: see ``scripts/fuzz_decoders.py``."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from cockpit_core.events.data import RunData, load
from cockpit_core.foundation import records
from cockpit_core.schema import cockpit_pb2 as pb
from cockpit_core.schema import wire
from scripts.mutations import mutate_bytes, mutate_field
from tests import hostile_logs
from tests.core.events.test_wire import make_full_record
from tests.hostile_logs import FAR, HEADER, HEAVY, META, RAW, RECORD, check_log, join_pieces

STEP = wire.encode_record(records.Record("step", 1, 1.0, 1.0, seq=2, scalars={"Loss": 1.0}))


def test_record_beside_a_damaged_description_of_its_series_is_kept(tmp_path: Path) -> None:
    """It was counted as broken and lost, although the tab, which reads both apart, showed it."""
    path = tmp_path / hostile_logs.NAME
    path.write_bytes(hostile_logs.build_file(join_pieces([(META, b"\xff\xff"), (RECORD, STEP)])))
    run = load(path)
    assert (run.received, run.broken) == (1, 1)
    check_log(join_pieces([(META, b"\xff\xff"), (RECORD, STEP)]))


def test_clock_that_is_infinite_says_nothing_about_patience(recwarn: pytest.WarningsRecorder) -> None:
    run = RunData()
    for seq, clock in enumerate([1.0, math.inf, -math.inf, math.nan, math.inf, 1e300, 2.0]):
        run.feed_record(wire.encode_record(records.Record("log", seq, clock, 1.0, seq=seq)))
    assert run._patience() == 60.0
    assert not recwarn


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [(RAW, b"\x00" * 40), (RECORD, STEP)],
        [(HEADER, b""), (HEADER, b"\x08"), (RECORD, b""), (HEAVY, b""), (FAR, b"x")],
        [(RECORD, STEP)] * 3,
        [(RECORD, pb.Record(kind=pb.KIND_END, status="\x1b[2J", error="\x07").SerializeToString())],
    ],
    ids=["nothing", "damage", "rubbish", "thrice", "escape"],
)
def test_everything_that_can_be_done_with_a_log_works(pieces: list[tuple[int, bytes]]) -> None:
    check_log(join_pieces(pieces))


@pytest.mark.parametrize("seed", range(4))
def test_mutated_logs_can_be_used(seed: int, tmp_path: Path) -> None:
    """A little of what the fuzzer does, for changes to come; it runs for longer on demand."""
    chance = random.Random(seed)
    header = records.Header("id", "run", 1.0, layers=[records.LayerInfo(name, (1,), 1) for name in "abc"])
    pieces = [(HEADER, wire.encode_header(header)), (RECORD, wire.encode_record(make_full_record()))] * 2
    for _ in range(12):
        changed = list(pieces)
        for _ in range(3):
            place = chance.randrange(len(changed))
            kind, body = changed[place]
            message = hostile_logs.MESSAGES[kind].FromString(body)
            mutate_field(message, chance)
            changed[place] = (kind, message.SerializeToString())
        check_log(join_pieces(changed), tmp_path)
        hostile_logs.check_decoders(mutate_bytes(changed[-1][1], chance))
