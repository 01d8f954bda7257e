"""Where a run goes that a training library starts."""

from __future__ import annotations

from pathlib import Path


def choose_folder(logdir: str | Path | None, parent: str | Path | None) -> Path | None:
    """The user's choice, else ``<parent>/cockpit`` with a number behind it if there is a run already; None: our default."""
    if logdir is not None:
        return Path(logdir)
    if parent is None:
        return None
    base = Path(parent) / "cockpit"
    choices = [base, *(base.with_name(f"cockpit_{k}") for k in range(1, 1000))]
    return next((choice for choice in choices if not choice.exists()), base)
