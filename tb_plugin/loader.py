"""What TensorBoard imports at every start, even for people who never open the tab.

An exception here, or in ``fix_flags``, would keep TensorBoard from starting at all. So this module imports nothing of
ours, and nothing that it does may raise.
"""

from __future__ import annotations

import argparse
import logging

from tensorboard.plugins import base_plugin

PLUGIN_NAME = "cockpit"


class CockpitLoader(base_plugin.TBLoader):
    """Adds the flags, keeps TensorBoard from dropping records, and imports the plugin only when it is needed."""

    def define_flags(self, parser: argparse.ArgumentParser) -> None:
        try:
            parser.add_argument_group("cockpit").add_argument(
                "--cockpit_samples",
                metavar="N",
                type=int,
                default=0,
                help="How many records the Cockpit tab keeps of every 4,096; 0 keeps all. Fewer save memory, and the "
                "tab then says how many of how many it shows. --samples_per_plugin cockpit=N takes precedence. "
                "(default: %(default)s)",
            )
        except Exception as error:
            _explain("could not add the flag --cockpit_samples", error)

    def fix_flags(self, flags: argparse.Namespace) -> None:
        """Runs before the data server starts; without it 10 (Python) or 100 (data server) records of a tag are kept."""
        try:
            samples = max(0, int(getattr(flags, "cockpit_samples", None) or 0))
            if not flags.samples_per_plugin:  # "" where TensorBoard was started from Python
                flags.samples_per_plugin = {}
            flags.samples_per_plugin.setdefault(PLUGIN_NAME, samples)
            # A run directory often holds two files, ours and the user's SummaryWriter's. Without this the Python
            # backend stops following the older one. None means that the user did not decide.
            if getattr(flags, "reload_multifile", False) is None:
                flags.reload_multifile = True
        except Exception as error:
            _explain("could not ask TensorBoard to keep all records", error)

    def load(self, context: base_plugin.TBContext) -> base_plugin.TBPlugin | None:
        try:
            from tb_plugin.plugin import CockpitPlugin

            return CockpitPlugin(context)
        except Exception as error:
            _explain("is switched off in this TensorBoard, everything else works", error)
            return None


def _explain(what: str, error: Exception) -> None:
    logging.getLogger("tensorboard").warning("The Cockpit tab %s: %s: %s", what, type(error).__name__, error)
