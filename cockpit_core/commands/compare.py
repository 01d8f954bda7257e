"""``cockpit compare``: reads logs, needs no torch."""

from __future__ import annotations

import argparse
import json
from typing import Any

from cockpit_core.commands.output import CommandError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="which setting is better, and what differed first",
        description="Compares runs by their logs: seeds of one setting are one row, instruments stand side by side at "
        "equal loss, and quantities are listed in the order in which they came apart.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="log directories, or folders that hold some")
    parser.add_argument("--target", metavar="NAME=VALUE", help="count steps and seconds, e.g. valid_accuracy=0.97")
    parser.add_argument("--metric", metavar="NAME", help="default: a validation metric that all runs logged")
    parser.add_argument("--group", metavar="KEY", help="compare the best settings by this one, e.g. optimizer")
    parser.add_argument("--json", action="store_true", help="everything, for other programs")
    parser.set_defaults(run_command=run_compare)


def run_compare(arguments: argparse.Namespace) -> None:
    from cockpit_core.comparing import compare

    try:
        comparison = compare(arguments.runs, target=arguments.target, group=arguments.group, metric=arguments.metric)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if arguments.json:
        print(json.dumps(comparison.to_dict(), indent=1))
    else:
        print(comparison)
