"""One event file on disk, appended to: is it still there, and does anybody else write one like it?

A writer holds an advisory lock on its own file for as long as it lives. The operating system drops it with the process,
however that ends, so a dead writer blocks nobody; and there is no extra lock file that would have to be removed.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: its locks would keep readers out too
    fcntl = None  # type: ignore[assignment]

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
RECENT = 60.0  # seconds
LOOK_EVERY = 2.0  # seconds between two looks at the path itself
_BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class LogFile:
    """Appends whole pieces. Closed and unlocked when nobody holds it any more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = -1
        self.descriptor = os.open(path, _FLAGS, 0o644)
        self.size = 0
        self.moved_to = ""  # with or without its folder; writing continues where it is now
        self._looked = time.monotonic()
        self._process = os.getpid()
        for _ in range(20):
            if lock(self.descriptor) is not False:
                break
            time.sleep(0.005)  # somebody is checking whether it is locked

    def append(self, data: bytes) -> None:
        done = 0
        try:
            while done < len(data):
                done += os.write(self.descriptor, data[done:] if done else data)
        except OSError:
            self._undo(done)
            raise
        self.size += len(data)

    def _undo(self, done: int) -> None:
        """A full disk may take half a record: cut it off, so that what comes later can be read."""
        if done:
            try:
                os.ftruncate(self.descriptor, os.fstat(self.descriptor).st_size - done)
            except OSError:
                pass  # the reader will skip the half record

    def find_loss(self) -> str:
        """Why nobody will read what is appended ("" if all is well). Asked before every record; takes about a
        microsecond."""
        try:
            status = os.fstat(self.descriptor)
        except OSError as error:  # a network file system no longer knows it
            return f"cannot be reached any more ({error.strerror})"
        if status.st_nlink == 0:
            return "was deleted"
        if status.st_size < self.size:
            return "was cut off"
        if time.monotonic() - self._looked < LOOK_EVERY or self.moved_to:
            return ""
        self._looked = time.monotonic()
        if not self.path.exists():
            self.moved_to = where_is(self.descriptor) or "an unknown place"
        if "/.nfs" in self.moved_to:  # how a network file system keeps a deleted file that is still open
            self.moved_to = ""
            return "was deleted"
        return ""

    def is_at(self, path: Path) -> bool:
        """Is the file of that name this very one?"""
        try:
            return os.path.samestat(os.fstat(self.descriptor), os.stat(path))
        except OSError:
            return False

    def close(self) -> None:
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            if fcntl is not None and os.getpid() == self._process:  # else processes that we forked would keep the lock
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                except OSError:
                    pass
            os.close(descriptor)

    def remove(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)

    def __del__(self) -> None:
        self.close()


def lock(descriptor: int) -> bool | None:
    """True: ours from now on. False: somebody else holds it. None: this file system has no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError as error:
        return False if error.errno in _BUSY else None


def where_is(descriptor: int) -> str:
    """The present name of an open file, where the system tells."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def make_name(stamp: int, generation: int) -> str:
    return f"events.out.tfevents.{stamp:010d}.{host_name()}.{os.getpid()}.{generation}.cockpit"


def host_name() -> str:
    return re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname()) or "host"


def writer_of(path: Path) -> tuple[str, int]:
    """Host and process that the name of an event file names; ("", 0) if it does not."""
    match = re.fullmatch(r"events\.out\.tfevents\.\d+\.(.+)\.(\d+)\.\d+\.cockpit", path.name)
    return (match[1], int(match[2])) if match else ("", 0)


def is_gone(path: Path) -> bool:
    """The process that made this file ran on this machine and has ended. Its children may still hold the lock."""
    host, process = writer_of(path)
    if host != host_name() or not process or not hasattr(os, "kill") or os.name == "nt":
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def find_sign_of_life(path: Path) -> str:
    """ "locked": a living process writes this file. "recent": nobody knows, but it was written to a moment ago. "": dead."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return ""  # not ours to write, or gone
    try:
        held = lock(descriptor)
        age = time.time() - os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
    if held or is_gone(path):
        return ""
    if held is False:
        return "locked"
    return "recent" if age < RECENT and writer_of(path) != (host_name(), os.getpid()) else ""
