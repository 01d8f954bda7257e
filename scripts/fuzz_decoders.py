"""Coverage-guided fuzzing of everything that reads a log: ``python scripts/fuzz_decoders.py FOLDER --minutes 40``.

Needs atheris (``pip install atheris``), which is no dependency. Half of the mutations are of bytes, half of fields of the
messages. What goes wrong is not fatal: one input for each place in the code that raised is kept in ``FOLDER/finds``.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
with atheris.instrument_imports(include=["cockpit_core", "cockpit_widget"]):
    from tests import hostile_logs, synthetic

from cockpit_core.events import bulk
from cockpit_core.events.reader import read_events
from cockpit_core.foundation import records
from cockpit_core.schema import wire
from scripts.mutations import mutate_field


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    chance = random.Random(seed)
    pieces = list(hostile_logs.split_pieces(data[1:]))
    if not pieces or chance.random() < 0.3:
        return atheris.Mutate(data, max_size)
    place = chance.randrange(len(pieces))
    kind, body = pieces[place]
    move = chance.random()
    if move < 0.1:
        pieces.insert(chance.randrange(len(pieces)), pieces[place])
    elif move < 0.15:
        del pieces[place]
    elif kind in hostile_logs.MESSAGES:
        pieces[place] = (kind, mutate_message(hostile_logs.MESSAGES[kind], body, chance))
    else:
        pieces[place] = (chance.randrange(7), body)
    return (data[:1] + hostile_logs.join_pieces(pieces))[:max_size]


def mutate_message(kind: Any, body: bytes, chance: random.Random) -> bytes:
    try:
        message = kind.FromString(body)
    except Exception:
        message = kind()
    for _ in range(chance.choice([1, 1, 2, 5])):
        mutate_field(message, chance)
    return message.SerializeToString()[:0xFFFF]


def write_seeds(folder: Path) -> None:
    """A whole small run, its pieces alone, and many records alike."""
    run = folder / "run"
    synthetic.write_run(run, steps=12)
    pieces = []
    (path,) = run.iterdir()
    for event in read_events(path)[0]:
        for value in event.values:
            for tag, kind in (("header", 0), ("records", 1), ("heavy", 2)):
                if value.tag.startswith(f"cockpit/{tag}"):
                    pieces.append((kind, value.strings()[0][:0xFFFF]))
    alike = [
        (1, wire.encode_record(records.Record("step", i, 1.0, 1.0, seq=i, scalars={"Loss": 1.0}, alphas=[make_fit(i)])))
        for i in range(20)
    ]
    meta = (6, wire.encode_series("heavy", 1, "H0"))
    groups = [pieces[:6], pieces[:1] + pieces[-4:], alike, [pieces[0], *alike[:3], meta, *pieces[1:3]]]
    groups += [[piece] for piece in pieces[:8]]
    for number, group in enumerate(groups):
        (folder / f"seed{number}").write_bytes(b"\x01" + hostile_logs.join_pieces(group))
    for number, (_, body) in enumerate(pieces[:8]):
        (folder / f"plain{number}").write_bytes(b"\x00" + body)
    for path in run.iterdir():
        path.unlink()
    run.rmdir()


def make_fit(step: int) -> records.AlphaFit:
    return records.AlphaFit(step, 0.5, *[1.0] * 12)


class Finds:
    def __init__(self, folder: Path, scratch: Path) -> None:
        self.folder, self.scratch = folder, scratch
        self.seen: set[str] = set()
        self.count = 0

    def try_one(self, data: bytes) -> None:
        self.count += 1
        begun = time.monotonic()
        try:
            if data[:1] == b"\x00":
                hostile_logs.check_decoders(data[1:])
            else:
                hostile_logs.check_log(data[1:], self.scratch, hosts=self.count % 4 == 0)
        except Exception as error:
            self.keep(data, error)
        if time.monotonic() - begun > 3:
            self.keep(data, TimeoutError(f"{time.monotonic() - begun:.1f} s"))

    def keep(self, data: bytes, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames]
        key = f"{type(error).__name__}@{places[-1] if places else 'slow'}@{places[-2] if len(places) > 1 else ''}"
        if key in self.seen:
            return
        self.seen.add(key)
        name = f"{len(self.seen):03d}"
        (self.folder / name).write_bytes(data)
        (self.folder / f"{name}.txt").write_text(f"{key}\n{''.join(traceback.format_exception(error))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=40.0)
    arguments = parser.parse_args()
    corpus, finds = arguments.folder / "corpus", arguments.folder / "finds"
    for folder in (corpus, finds):
        folder.mkdir(parents=True, exist_ok=True)
    write_seeds(corpus)
    bulk.FEW = 2  # so that few records are enough to be read together
    target = Finds(finds, arguments.folder)
    options = [sys.argv[0], str(corpus), f"-max_total_time={int(60 * arguments.minutes)}", "-max_len=16384"]
    options += ["-rss_limit_mb=3000", "-timeout=60", "-print_final_stats=1", f"-artifact_prefix={finds}/"]
    atheris.Setup(options, target.try_one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
