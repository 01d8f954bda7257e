"""What outlives a run: HTML, tables, pictures, text for a terminal."""

from cockpit_core.report.write import FORMATS, write_report

__all__ = ["FORMATS", "write_report"]
