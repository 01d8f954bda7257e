"""Comparing runs, from their logs alone: which setting is better, by how much, and what differed first. No torch."""

from __future__ import annotations

from cockpit_core.comparing.comparison import Comparison, compare

__all__ = ["Comparison", "compare"]
