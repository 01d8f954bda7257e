"""What the widget adds to a tracked run, measured inside a real ipykernel: messages are signed, queued and sent.

Two equal runs take turns in one process; one of them is shown. The widget's clock stands still while the other trains,
so its five messages a second are five per second of its own training. Whatever slows the machine slows both, and
nothing is done for one that is not done for the other: each is shown in every other round, and goes first every other
time.

Turns are short, for two of them see the same machine only if they follow at once. What follows a message (a thread
of the kernel sends it, caches are cold) would then often be counted for the other one. So the first steps of a turn are
not counted: a message of the last counted step disturbs nobody's count, and one of the first steps still disturbs its
own. Of the message and of what follows it the same share is counted as of the steps.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LEAD, BLOCK = 0.01, 0.09  # seconds of a turn, before the other one has its own: not counted, and counted
START = 1.5  # seconds that a new widget may take to come up, once; measured from there on


class OwnClock:
    """Runs only while its owner does."""

    def __init__(self) -> None:
        self._passed, self._since = 0.0, -1.0

    def __call__(self) -> float:
        return self._passed + (time.perf_counter() - self._since if self._since >= 0 else 0.0)

    def start(self) -> None:
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Stopping a clock that stands does nothing."""
        self._passed, self._since = self(), -1.0


class Contestant:
    """A network that trains, tracked; perhaps shown."""

    def __init__(self, case: str, folder: Path) -> None:
        import torch

        import cockpit_core

        torch.manual_seed(0)
        model, batch, options = CASES[case]()
        loss_fn, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.01)
        self.run = cockpit_core.track(model, loss_fn, optimizer, logdir=folder, on_error="raise", **options)
        self.every = int(options.get("schedule", 1))
        self.seconds: dict[str, float] = {}
        self.shown = 0.0  # processor seconds of the widget's messages, on the training thread
        self.reset()
        inputs, labels = batch

        def train(steps: int) -> None:
            for _ in range(steps):
                optimizer.zero_grad()
                loss_fn(model(inputs), labels).backward()
                optimizer.step()

        self.train = train

    def reset(self) -> None:
        self.seconds = {"wall": 0.0, "cpu": 0.0, "inside": 0.0}

    def measure(self, lead: int, steps: int) -> None:
        self.train(lead)
        wall, cpu, shown = time.perf_counter(), time.process_time(), self.shown
        self.train(steps)
        self.seconds["inside"] += self.shown - shown
        self.seconds["wall"] += time.perf_counter() - wall
        self.seconds["cpu"] += time.process_time() - cpu

    def watch(self, tick: Callable[..., bool]) -> Callable[..., bool]:
        """The widget's sending with a stopwatch; not what it does at every step, where that would cost as much again."""

        def timed(*args: Any, **options: Any) -> bool:
            began = time.thread_time()
            result = tick(*args, **options)
            self.shown += time.thread_time() - began
            return result

        return timed


def make_tiny() -> tuple[Any, tuple[Any, Any]]:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 2))
    return model, (torch.randn(16, 10), torch.randint(0, 2, (16,)))


def tiny_loss() -> tuple[Any, ...]:
    from cockpit_core.quantities import configuration

    config = [quantity for quantity in configuration("economy") if quantity.name == "Loss"]
    return *make_tiny(), {"config": config}


def tiny_economy() -> tuple[Any, ...]:
    return *make_tiny(), {"config": "economy"}


def tiny_tenth() -> tuple[Any, ...]:
    return *make_tiny(), {"config": "economy", "schedule": 10}


def normal() -> tuple[Any, ...]:
    import torch
    from torch import nn

    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 49, 10)),
    )
    return model, (torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))), {"config": "economy"}


CASES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "tiny network, loss, every step": tiny_loss,
    "tiny network, economy, every step": tiny_economy,
    "tiny network, economy, every 10th step": tiny_tenth,
    "convolutional network, economy, every step": normal,
}


def compare(case: str, seconds: float, rounds: int) -> dict[str, Any]:
    """The share that the widget adds, per round; which of the two runs is shown changes from round to round."""
    import torch

    torch.set_num_threads(1)
    added: dict[str, list[float]] = {"wall": [], "cpu": [], "inside": []}
    with tempfile.TemporaryDirectory() as folder:
        pair = [Contestant(case, Path(folder) / name) for name in ("a", "b")]
        turns, rate = calibrate(pair)
        for turn in range(rounds):
            shown, plain = pair[turn % 2], pair[1 - turn % 2]
            for name, share in play_round(shown, plain, turns, seconds).items():
                added[name].append(share)
        for contestant in pair:
            contestant.run.close()
    return {"steps_per_second": rate, "added": {name: summarise(shares) for name, shares in added.items()}}


def summarise(shares: list[float]) -> dict[str, Any]:
    """The mean: each of the two is shown in every other round, so that what tells them apart cancels. And its error."""
    error = statistics.stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else 0.0
    return {"mean": statistics.mean(shares), "error": error, "rounds": shares}


def calibrate(pair: list[Contestant]) -> tuple[tuple[int, int], float]:
    """How many steps make a turn, not counted and counted, and how many there are per second."""
    for contestant in pair:
        contestant.train(40)
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < 0.5:
        for contestant in pair:
            contestant.train(10)
        steps += 20
    rate, each = steps / (time.perf_counter() - began), pair[0].every
    return (whole(LEAD * rate, each), whole(BLOCK * rate, each)), rate


def whole(steps: float, each: int) -> int:
    """Of tracked and untracked steps always the same share."""
    return each * max(1, round(steps / each))


def play_round(shown: Contestant, plain: Contestant, turns: tuple[int, int], seconds: float) -> dict[str, float]:
    from cockpit_widget import CockpitWidget

    gc.collect()  # a full collection takes as long as all messages of a round, and comes by chance: once, for nobody
    clock = OwnClock()
    widget = CockpitWidget(shown.run, clock=clock, poster=False)
    widget._feed.tick = shown.watch(widget._feed.tick)  # type: ignore[method-assign]
    order = [plain, shown]
    while clock() < START + seconds:
        if clock() < START:
            shown.reset()
            plain.reset()
        for contestant in order:
            if contestant is shown:
                clock.start()
            contestant.measure(*turns)
            clock.stop()
        order.reverse()
    widget.close()
    assert widget.status["errors"] == 0, widget.status["last_error"]
    shares = {name: shown.seconds[name] / plain.seconds[name] - 1 for name in ("wall", "cpu")}
    inside = shown.seconds["inside"]
    return {**shares, "inside": inside / (shown.seconds["cpu"] - inside)}


# ---- from outside ----------------------------------------------------------------------------------------------------


def measure_in_kernel(cases: list[str], seconds: float, rounds: int, python: str = sys.executable) -> dict[str, Any]:
    """Starts a kernel, lets it measure, and reads everything it sends, as a server would."""
    from jupyter_client.manager import KernelManager

    manager = KernelManager()
    manager.kernel_spec.argv[0] = python  # type: ignore[union-attr]
    quiet = ["--log-level=ERROR"]
    manager.start_kernel(cwd=str(ROOT), env={**os.environ, "OMP_NUM_THREADS": "1"}, extra_arguments=quiet)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        kernel = client.kernel_info(reply=True, timeout=30)["content"]
        results: dict[str, Any] = {}
        for case in cases:
            code = f"import benchmarks.widget_kernel as k, json; print(json.dumps(k.compare({case!r}, {seconds}, {rounds})))"
            text, messages, size = execute(client, code)
            results[case] = {**json.loads(text), "messages": messages, "megabytes": size / 1e6}
        return {"implementation": f"{kernel['implementation']} {kernel['implementation_version']}", **results}
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def execute(client: Any, code: str) -> tuple[str, int, int]:
    """What the code printed, and how many comm messages of which size in all came on the way."""
    request = client.execute(code)
    text, messages, size = "", 0, 0
    while True:
        message = client.get_iopub_msg(timeout=300)
        if message["parent_header"].get("msg_id") != request:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "comm_msg":
            messages, size = messages + 1, size + sum(len(buffer) for buffer in message["buffers"])
        elif kind == "stream" and content["name"] == "stdout":
            text += content["text"]
        elif kind == "error":
            raise RuntimeError("\n".join(content["traceback"]))
        elif kind == "status" and content["execution_state"] == "idle":
            return text, messages, size
