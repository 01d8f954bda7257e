"""Carrying out a list of trials: one after the other here, or several at a time in processes of their own."""

from __future__ import annotations

import os
import shlex
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from cockpit_core.sweeping.trials import ERROR, Trial, read_result
from cockpit_core.sweeping.worker import Worker, find_output, read_tail, write_error

HEARTBEAT = 20.0  # seconds between messages of running trials


@dataclass
class Options:
    """How trials are run; what they are is in ``Trial``."""

    logdir: Path
    data: str | None = None
    config: str = "economy"
    every: int | None = None
    processes: int = 1
    say: Callable[[str], None] = print


@dataclass
class Outcome:
    results: dict[Trial, dict[str, Any]] = field(default_factory=dict)
    failed: dict[Trial, str] = field(default_factory=dict)
    skipped: int = 0


class Clock:
    """How long it will take, from how long the trials of this sweep took."""

    def __init__(self, total: int, processes: int, say: Callable[[str], None]) -> None:
        self.total, self.processes, self.say = total, processes, say
        self.done, self.began = 0, time.monotonic()

    def tell(self, trial: Trial, words: str) -> None:
        self.done += 1
        left = (time.monotonic() - self.began) / self.done * (self.total - self.done)
        rest = f"; about {show_seconds(left)} left" if self.done < self.total else ""
        self.say(f"[{self.done}/{self.total}] {trial}: {words}{rest}")


def show_seconds(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )


def describe_result(result: dict[str, Any]) -> str:
    if result["status"] != "finished":
        return f"{result['status']} after {show_seconds(result['seconds'])}"
    value = result["metrics"].get(result["metric"])
    return f"{result['metric']} {value:.4g}, {show_seconds(result['seconds'])}" if value is not None else "no metric"


def run_trials(trials: Sequence[Trial], options: Options) -> Outcome:
    """All that are not finished yet. A trial that fails does not stop the others, and is tried again next time."""
    outcome, waiting = Outcome(), []
    for trial in trials:
        result = read_result(trial.find_folder(options.logdir), trial)
        if result is None:
            waiting.append(trial)
        else:
            outcome.results[trial] = result
            outcome.skipped += 1
    if outcome.skipped:
        options.say(f"{outcome.skipped} of {len(trials)} are finished already, and are not run again")
    clock = Clock(len(waiting), options.processes, options.say)
    # Decided by the whole grid, not by what is left of it: other numbers of threads round differently.
    if options.processes == 1:
        run_here(waiting, options, outcome, clock)
    else:
        run_in_processes(waiting, options, outcome, clock)
    return outcome


def run_here(waiting: Sequence[Trial], options: Options, outcome: Outcome, clock: Clock) -> None:
    from cockpit_core import problems
    from cockpit_core.sweeping.train import Orphan, run_trial

    loaded: dict[str, Any] = {}
    for trial in waiting:
        folder = trial.find_folder(options.logdir)
        problem = problems.find(trial.problem)
        if trial.problem not in loaded:
            loaded = {trial.problem: problem.load(options.data)}
        last = [time.monotonic()]

        def say(words: str, last: list[float] = last) -> None:
            if time.monotonic() - last[0] > 2:  # seconds
                last[0] = time.monotonic()
                options.say(words)

        try:
            result = run_trial(trial, problem, loaded[trial.problem], folder, options.config, options.every, say)
        except (Orphan, KeyboardInterrupt):
            raise
        except Exception as error:
            note_failure(trial, folder, traceback.format_exc(), f"{type(error).__name__}: {error}", outcome, clock)
        else:
            outcome.results[trial] = result
            clock.tell(trial, describe_result(result))


def note_failure(trial: Trial, folder: Path, details: str, words: str, outcome: Outcome, clock: Clock) -> None:
    write_error(folder, details)
    outcome.failed[trial] = words
    clock.tell(trial, f"failed: {words} (see {folder / ERROR})")


def make_command(trial: Trial, options: Options) -> list[str]:
    """The command that runs this trial alone: for a process of our own, a job array, another machine."""
    command = ["cockpit", "sweep", trial.problem, "--optimizer", trial.optimizer, "--lr", repr(trial.lr)]
    command += ["--first-seed", str(trial.seed), "--seeds", "1", "--epochs", str(trial.epochs)]
    command += ["--batch-size", str(trial.batch_size), "--logdir", str(options.logdir), "--config", options.config]
    command += ["--every", str(options.every)] if options.every else []
    return command + (["--data", options.data] if options.data else [])


def show_command(trial: Trial, options: Options) -> str:
    return shlex.join(make_command(trial, options))


def run_in_processes(waiting: Sequence[Trial], options: Options, outcome: Outcome, clock: Clock) -> None:
    """In processes beside this one, so that a trial that kills its process takes nothing else with it."""
    rest, told = list(waiting), time.monotonic()
    ended: SimpleQueue[Worker] = SimpleQueue()
    threads = max(1, count_cores() // options.processes)
    workers = [Worker(threads, ended) for _ in range(min(options.processes, len(rest)))]
    try:
        for worker in workers:
            hand_out(worker, rest, options)
        while any(worker.trial for worker in workers):
            try:
                worker = ended.get(timeout=max(0.0, told + HEARTBEAT - time.monotonic()))
            except Empty:
                told = time.monotonic()
                tell_progress(workers, options)
                continue
            if worker.trial is None or worker not in workers:  # dead, and its trial is accounted for
                continue
            finish(worker, options, outcome, clock)
            if not worker.is_alive and rest:
                worker.stop()
                workers[workers.index(worker)] = worker = Worker(threads, ended)
            hand_out(worker, rest, options)
    finally:
        for worker in workers:
            worker.stop()


def hand_out(worker: Worker, rest: list[Trial], options: Options) -> None:
    worker.trial = None
    if rest:
        trial = rest.pop(0)
        worker.begin(trial, trial.find_folder(options.logdir), options.data, options.config, options.every)


def tell_progress(workers: Sequence[Worker], options: Options) -> None:
    for trial in (worker.trial for worker in workers if worker.trial):
        last = read_tail(find_output(trial.find_folder(options.logdir)))
        options.say(f"  {last}" if last else f"  {trial}: started")


def finish(worker: Worker, options: Options, outcome: Outcome, clock: Clock) -> None:
    """What became of the worker's trial, from the trial's folder."""
    trial = worker.trial
    assert trial is not None
    folder = trial.find_folder(options.logdir)
    result = read_result(folder, trial)
    output = find_output(folder)
    if result is not None:
        outcome.results[trial] = result
        output.unlink(missing_ok=True)
        clock.tell(trial, describe_result(result))
    elif (folder / ERROR).is_file():
        outcome.failed[trial] = read_tail(folder / ERROR)
        clock.tell(trial, f"failed: {outcome.failed[trial]} (see {folder / ERROR})")
    else:
        outcome.failed[trial] = read_tail(output) or f"exit code {worker.process.returncode}"
        clock.tell(trial, f"failed: {outcome.failed[trial]} (see {output})")


def count_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def choose_best(outcome: Outcome) -> dict[tuple[str, str], float]:
    """For each problem and optimizer, the rate with the best median validation metric over its seeds."""
    finals: dict[tuple[str, str], dict[float, list[float]]] = {}
    for trial, result in outcome.results.items():
        value = result["metrics"].get(result["metric"])
        worth = float("-inf") if value is None else -value if result["less_is_better"] else value
        finals.setdefault((trial.problem, trial.optimizer), {}).setdefault(trial.lr, []).append(worth)
    return {key: max(rates, key=lambda rate: statistics.median(rates[rate])) for key, rates in finals.items()}
