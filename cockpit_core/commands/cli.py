"""The ``cockpit`` command. Imports torch only to train: looking at a run must start at once."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cockpit_core._version import __version__
from cockpit_core.commands import compare as compare_command
from cockpit_core.commands import sweep as sweep_command
from cockpit_core.commands.output import CommandError as CommandError

FORMATS = ("html", "csv", "json", "png", "svg")


HOW_TO_BEGIN = 'cockpit_core.track(model, loss_fn, optimizer, logdir="runs/NAME") writes one, `cockpit demo` too'


class UnreadableError(CommandError):
    """`cockpit diagnose` tells a run that cannot be read (2) from one that is broken (1)."""

    code = 2


def run_demo(arguments: argparse.Namespace) -> None:
    from cockpit_core.commands.demo import run_demo

    run_demo(Path(arguments.logdir) if arguments.logdir else None, steps=arguments.steps, fast=arguments.fast)


def run_ls(arguments: argparse.Namespace) -> None:
    from cockpit_core.report.show import list_runs
    from cockpit_core.report.terminal import Terminal

    root = Path(arguments.folder)
    if not root.is_dir():
        raise CommandError(f"{root}: no such folder, so no run yet; {HOW_TO_BEGIN}")
    if not list_runs(root, Terminal(sys.stdout)):
        raise CommandError(f"{root}: no run here or below; {HOW_TO_BEGIN}")


def run_show(arguments: argparse.Namespace) -> None:
    from cockpit_core.report.show import show_run
    from cockpit_core.report.terminal import Terminal

    show_run(find_run(arguments.run), Terminal(sys.stdout), arguments.quantity)


def run_diagnose(arguments: argparse.Namespace) -> int:
    from cockpit_core.commands.diagnose import print_diagnosis
    from cockpit_core.report.terminal import Terminal

    try:
        runs = [find_run(run) for run in arguments.runs]
        return print_diagnosis(runs, Terminal(sys.stdout), as_json=arguments.json, fail_on=arguments.fail_on)
    except (CommandError, OSError, ValueError) as error:
        raise UnreadableError(str(error)) from error


def run_report(arguments: argparse.Namespace) -> None:
    from cockpit_core.comparing.profiles_page import write_profiles
    from cockpit_core.report.terminal import clean
    from cockpit_core.report.write import make_report

    runs = [run for name in arguments.runs for run in find_all(name)]
    named = Path(arguments.runs[0]) if len(arguments.runs) == 1 and len(runs) > 1 else runs[0]  # a folder, or its run
    path, form = choose_target(arguments.output, arguments.format, named)
    try:
        report = make_report(runs, form, int(1e6 * arguments.max_size), write_profiles)
    except ImportError as error:  # pictures are drawn by an optional package
        raise CommandError(str(error)) from error
    except ValueError as error:  # a size that holds nothing, a table that is too large
        raise CommandError(str(error)) from error
    path.write_bytes(report.content)
    for run in report.without_values:
        print(f"{clean(run)} has no values yet; they come with the first optimizer step.", file=sys.stderr)
    whole = form == "html" and not report.left_out
    size = f"{report.megabytes:.1f} MB" if report.megabytes >= 0.1 else f"{max(1.0, 1000 * report.megabytes):.0f} kB"
    print(f"{clean(str(path))}  {size}" + (", nothing left out" if whole else ""))
    if report.left_out:
        size = f"To stay under {arguments.max_size:g} MB (--max-size), some" if form == "html" else "Some"
        print(f"{size} is left out. {clean(report.left_out)}", file=sys.stderr)


def run_coordinates(arguments: argparse.Namespace) -> None:
    from cockpit_core.commands.coordinates import NotUsable, check_coordinates, describe, find_function
    from cockpit_core.report.terminal import Terminal, clean, draw_sparkline, format_table

    def progress(text: str) -> None:
        print(f"{text} ...", file=sys.stderr)

    try:
        function = find_function(arguments.model_fn)
        check = check_coordinates(function, arguments.widths, steps=arguments.steps, progress=progress)
    except NotUsable as error:
        raise CommandError(str(error)) from error
    terminal = Terminal(sys.stdout)
    rows = [[clean(cell) for cell in row] for row in describe(check, lambda sizes: draw_sparkline(sizes, terminal))]
    for line in format_table(rows, "<<" + ">" * (len(check.widths) + 2) + "<"):
        terminal.write(line)


def choose_target(output: str | None, form: str | None, named: Path) -> tuple[Path, str]:
    """Where to write, and what: the option wins, then the file's ending, then HTML."""
    from cockpit_core.report.write import choose_format

    try:
        form = choose_format(Path(output), form) if output else form or "html"
    except ValueError as error:
        raise CommandError(str(error)) from error
    path = Path(output) if output else Path(f"{named.resolve().name}.{form}")
    if not path.parent.is_dir():
        raise CommandError(f"{path.parent}: no such folder")
    return path, form


def find_all(name: str) -> list[Path]:
    """The folder of a run, or of every run below a folder that is not a run itself."""
    from cockpit_core.report.show import find_runs

    path = Path(name)
    if not path.exists():
        raise CommandError(f"{name}: no such folder")
    if not path.is_dir():
        raise CommandError(f"{name}: a run is a folder")
    runs = list(find_runs(path))
    if not runs:
        raise CommandError(f"{name}: no run here; `cockpit ls {path.parent}` lists what there is; {HOW_TO_BEGIN}")
    return [path] if path in runs else runs


def find_run(name: str) -> Path:
    """The folder of one run. A folder that holds several is an error that names them."""
    runs = find_all(name)
    if len(runs) == 1:
        return runs[0]
    raise CommandError(f"{name} holds several runs; choose one: {', '.join(map(str, runs[:5]))}")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cockpit", description="A debugger for training PyTorch networks.")
    parser.add_argument("--version", action="version", version=f"cockpit {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    demo = commands.add_parser("demo", help="train a small network and show where to look")
    demo.add_argument("--logdir", help="where to write; default: a new folder in runs/")
    demo.add_argument("--steps", type=positive, default=300, help="how long to train (default: %(default)s)")
    demo.add_argument("--fast", action="store_true", help="a few seconds: fewer steps, no curvature")
    demo.set_defaults(run_command=run_demo)

    ls = commands.add_parser("ls", help="list the runs in a folder")
    ls.add_argument("folder", nargs="?", default="runs", help="default: runs")
    ls.set_defaults(run_command=run_ls)

    show = commands.add_parser("show", help="one run as a table with sparklines")
    show.add_argument("run", help="its log directory, e.g. runs/lenet")
    show.add_argument("quantity", nargs="?", help="show this quantity layer by layer, e.g. GradNorm")
    show.set_defaults(run_command=run_show)

    coordinates = commands.add_parser("coordinates", help="do activations and updates keep their size with the width?")
    coordinates.add_argument(
        "model_fn",
        help="module:function or file.py:function; takes a width, returns model, loss, optimizer and a batch",
    )
    coordinates.add_argument("--widths", type=positive, nargs="+", default=[64, 128, 256, 512], metavar="N")
    coordinates.add_argument("--steps", type=positive, default=4, help="how long to train each (default: %(default)s)")
    coordinates.set_defaults(run_command=run_coordinates)

    diagnose = commands.add_parser("diagnose", help="what is wrong with a run, since when, and what to try")
    diagnose.add_argument("runs", nargs="+", metavar="RUN", help="log directories, e.g. runs/lenet")
    diagnose.add_argument("--json", action="store_true", help="all findings as JSON")
    diagnose.add_argument(
        "--fail-on",
        choices=("broken", "likely"),
        default="broken",
        help="exit with 1 if there is such a finding or a worse one (default: %(default)s); 2 = not readable",
    )
    diagnose.set_defaults(run_command=run_diagnose)

    report = commands.add_parser("report", help="write one file that can be mailed")
    report.add_argument("runs", nargs="+", metavar="RUN", help="log directories; several are compared")
    report.add_argument("-o", "--output", metavar="FILE", help="default: the run's name, here")
    report.add_argument("--format", choices=FORMATS, help="default: by the file's ending, or html")
    report.add_argument("--max-size", type=float, default=5.0, metavar="MB", help="of the HTML (default: %(default)g)")
    report.set_defaults(run_command=run_report)

    for module in (compare_command, sweep_command):
        module.add_parser(commands)
    return parser


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if "run_command" not in arguments:
        parser.print_help(sys.stderr)
        return 2
    try:
        code = arguments.run_command(arguments)
        sys.stdout.flush()
        return code or 0
    except BrokenPipeError:
        # `cockpit ls | head`: the reader has seen enough. Nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except (CommandError, OSError) as error:
        from cockpit_core.report.terminal import clean

        print(f"cockpit: {clean(str(error))}", file=sys.stderr)  # names of folders and of runs may hold anything
        return getattr(error, "code", 1)


if __name__ == "__main__":
    sys.exit(main())
