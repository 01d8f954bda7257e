"""``cockpit sweep``: a grid of runs by one command."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cockpit_core.commands.output import CommandError

if TYPE_CHECKING:
    from cockpit_core.sweeping.sweep import Options, Outcome
    from cockpit_core.sweeping.trials import Trial

FINAL_SEED = 100  # the best is tried again with other seeds than those it was chosen by


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "sweep",
        help="train problems with several optimizers, learning rates and seeds",
        description="One run directory per combination; runs that are finished are not run again: a sweep that was killed "
        "goes on when it is called again. `cockpit compare` reads the result.",
    )
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help="names (--list shows them), or module:function")
    parser.add_argument("--list", action="store_true", help="list the problems and exit")
    optimizers = "of torch.optim, with options: SGD,momentum=0.9; or mypackage:MyOptimizer (default: %(default)s)"
    parser.add_argument("--optimizer", nargs="+", default=["SGD"], metavar="NAME", help=optimizers)
    parser.add_argument("--lr", nargs="+", type=float, default=[0.01, 0.1], help="learning rates (default: 0.01 0.1)")
    parser.add_argument("--seeds", type=positive, default=1, help="runs per setting (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="SEED", help="default: %(default)s")
    parser.add_argument("--epochs", type=positive, help="default: as long as the benchmark trains")
    parser.add_argument("--batch-size", type=positive, help="default: the problem's own")
    trials = "that many rates between the smallest and the largest of --lr, the same for all optimizers"
    parser.add_argument("--trials", type=positive, metavar="N", help=trials)
    final = "then the best rate of each optimizer (by validation) with N new seeds, into LOGDIR/final"
    parser.add_argument("--final-seeds", type=positive, metavar="N", help=final)
    parser.add_argument("--logdir", default="runs/sweep", help="default: %(default)s")
    parser.add_argument("--data", metavar="FOLDER", help="your data, as torchvision stores them")
    parser.add_argument("--config", default="economy", help="what to track (default: %(default)s)")
    parser.add_argument("--every", type=positive, metavar="N", help="track every N-th step (default: 300 per run)")
    parser.add_argument("--processes", type=positive, metavar="N", help="at a time (default: one per core)")
    parser.add_argument("--print-commands", action="store_true", help="print one command per run, and run nothing")
    parser.set_defaults(run_command=run_sweep)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def run_sweep(arguments: argparse.Namespace) -> None:
    from cockpit_core.sweeping.train import Orphan

    try:
        if arguments.list:
            list_problems()
            return
        with modules_of_this_folder():
            sweep(arguments)
    except Orphan as error:
        raise CommandError("the sweep that started this run has ended") from error
    except ValueError as error:  # UnknownName among them
        raise CommandError(str(error)) from error


@contextlib.contextmanager
def modules_of_this_folder() -> Iterator[None]:
    """``mypackage:my_problem`` is found where the command is called, as ``python -m`` would find it. An installed command
    does not look there by itself. The folder comes last, so that none of its files hides a package."""
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def list_problems() -> None:
    from cockpit_core import problems

    for name in problems.names():
        problem = problems.find(name)
        print(f"{name:<18} {problem.parameters:>10,} parameters, {problem.epochs} epochs: {problem.description}")


def sweep(arguments: argparse.Namespace) -> None:
    from cockpit_core.sweeping.sweep import Options, count_cores, run_trials, show_command

    trials = make_trials(arguments)
    processes = arguments.processes or min(count_cores(), len(trials))
    options = Options(
        Path(arguments.logdir),
        arguments.data,
        arguments.config,
        arguments.every,
        processes,
        lambda w: print(w, flush=True),
    )
    if arguments.print_commands:
        for trial in trials:
            print(show_command(trial, options))
        return
    print(
        f"{len(trials)} {'runs' if len(trials) > 1 else 'run'} into {options.logdir}, {processes} at a time", flush=True
    )
    prepare_data(trials, options)
    outcome = run_trials(trials, options)
    if arguments.final_seeds:
        finals = run_finals(trials, outcome, options, arguments.final_seeds)
        outcome.failed |= finals.failed
    conclude(outcome, options, bool(arguments.final_seeds))


def make_trials(arguments: argparse.Namespace) -> list[Trial]:
    """Everything is looked up before anything is run: a typo must not show after an hour."""
    from cockpit_core import problems
    from cockpit_core.quantities import CONFIGURATIONS
    from cockpit_core.sweeping.train import find_optimizer
    from cockpit_core.sweeping.trials import list_trials, parse_optimizer, space_rates

    if not arguments.problems:
        raise ValueError(f"which problem? There are {', '.join(problems.names())}")
    if arguments.config not in CONFIGURATIONS:
        raise ValueError(f"--config is one of {', '.join(CONFIGURATIONS)}, got {arguments.config!r}")
    chosen = [(name, problems.find(name)) for name in dict.fromkeys(arguments.problems)]
    for optimizer in arguments.optimizer:
        find_optimizer(parse_optimizer(optimizer)[0])
    sizes = [(name, arguments.epochs or p.epochs, arguments.batch_size or p.batch_size) for name, p in chosen]
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    rates = space_rates(arguments.lr, arguments.trials)
    return list(list_trials(sizes, list(dict.fromkeys(arguments.optimizer)), rates, seeds))


def prepare_data(trials: list[Trial], options: Options) -> None:
    """Missing data are fetched here, once, not by two processes at a time. If that fails, the sweep ends now."""
    from cockpit_core import problems
    from cockpit_core.sweeping.trials import read_result

    waiting = [trial for trial in trials if read_result(trial.find_folder(options.logdir), trial) is None]
    for name in dict.fromkeys(trial.problem for trial in waiting):
        problems.find(name).load(options.data)


def run_finals(trials: list[Trial], outcome: Outcome, options: Options, seeds: int) -> Outcome:
    import dataclasses

    from cockpit_core.sweeping.sweep import choose_best, run_trials

    finals = []
    for (problem, optimizer), rate in choose_best(outcome).items():
        first = next(t for t in trials if (t.problem, t.optimizer, t.lr) == (problem, optimizer, rate))
        options.say(f"best of {problem} {optimizer}: lr={rate:g}")
        finals += [dataclasses.replace(first, seed=FINAL_SEED + number) for number in range(seeds)]
    return run_trials(finals, dataclasses.replace(options, logdir=options.logdir / "final"))


def conclude(outcome: Outcome, options: Options, final: bool) -> None:

    folder = options.logdir / "final" if final else options.logdir
    if outcome.results:
        print(f"To compare: cockpit compare {folder} --group optimizer")
    if outcome.failed:
        raise CommandError(f"{len(outcome.failed)} of the runs failed; the same command tries them again")
