"""``python -m benchmarks.diagnosis.cost``: what signals and rules add to a tracked step of "economy".

One run, steps with and without them in turn, CPU seconds of the process, medians: other programs on the machine do not
count, and a slow drift cancels.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import cockpit_core
from benchmarks.networks import three_conv_three_dense


class Transformer(nn.Module):
    """Two layers of torch's own encoder, 64 wide, on 32 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 100)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(tokens))).transpose(1, 2)


def make_problem(name: str):
    g = torch.Generator().manual_seed(0)
    if name == "3c3d":
        return (
            three_conv_three_dense(),
            torch.rand(32, 3, 32, 32, generator=g),
            torch.randint(0, 10, (32,), generator=g),
        )
    tokens = torch.randint(0, 100, (16, 33), generator=g)
    return Transformer(), tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def measure(name: str, pairs: int) -> tuple[float, float, float]:
    """CPU seconds of a tracked step with, and without signals and rules; and of the rules alone."""
    torch.manual_seed(0)
    model, x, y = make_problem(name)
    optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=1e-3), nn.CrossEntropyLoss()
    times: dict[bool, list[float]] = {True: [], False: []}
    rules: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        run = cockpit_core.track(model, loss_fn, optimizer, Path(folder) / "run", config="economy")
        begin, collect, see = run._tracker.signals.begin, run._tracker.signals.collect, run._tracker.log.live.see

        def timed_see(header, record):
            start = time.process_time()
            found = see(header, record)
            rules.append(time.process_time() - start)
            return found

        for i in range(2 * pairs + 6):
            whole = i % 2 == 0
            run._tracker.signals.collect = collect if whole else lambda parts, transfer: {}
            run._tracker.log.live.see = timed_see if whole else lambda header, record: []
            begin(whole)
            start = time.process_time()
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()
            if i >= 6:
                times[whole].append(time.process_time() - start)
        run.close()
    return statistics.median(times[True]), statistics.median(times[False]), statistics.median(rules)


def main() -> None:
    torch.set_num_threads(1)
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    for name in ("3c3d", "transformer"):
        whole, without, rules = measure(name, pairs)
        print(
            f"{name}: a tracked step {1e3 * without:.1f} ms without, {1e3 * whole:.1f} ms with signals and rules "
            f"({100 * (whole / without - 1):+.1f} %), of which rules {1e3 * rules:.2f} ms, {100 * rules / without:.1f} % "
            "of it, at a step that is judged"
        )


if __name__ == "__main__":
    main()
