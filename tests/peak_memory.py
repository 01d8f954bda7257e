"""The most memory that this process ever had, in MB, for scripts that a test starts.

``ru_maxrss`` would begin with what the parent process had, which a long test session makes large, and hide all growth.
"""

from __future__ import annotations

import re
from pathlib import Path


def megabytes() -> float:
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
    assert found is not None
    return int(found[1]) / 1e3
