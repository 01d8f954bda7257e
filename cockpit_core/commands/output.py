"""What the commands share."""

from __future__ import annotations


class CommandError(Exception):
    """Something the user can put right; shown as one line, exit code 1."""
