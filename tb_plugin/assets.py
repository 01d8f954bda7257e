"""The built bundle: a fixed list of files, so that no path of a request ever reaches the file system."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

from tensorboard import errors
from tensorboard.backend import http_util
from werkzeug.wrappers import Request, Response

FOLDER = Path(__file__).parent / "static"
ENTRY = "index.js"
# Types are named here: on Windows the registry may call JavaScript text/plain, and the browser then refuses it.
TYPES = {ENTRY: "text/javascript"}
NOT_BUILT = """export function render() {
  document.body.style.cssText = "font: 15px system-ui, sans-serif; padding: 40px; background: #fff; color: #16191d";
  document.body.textContent =
    "The Cockpit bundle was not built: run `npm ci && npm run build` in the clone, then reload. See docs/tensorboard.md.";
}
"""
ONE_YEAR = 365 * 24 * 3600


class Assets:
    """Serves the bundle, compressed once, under an address that changes with its content, so that browsers may keep
    it forever."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._known: dict[str, tuple[tuple[int, int], bytes, str]] = {}  # name: (mtime and size, gzip, hash)

    def entry_path(self) -> str:
        try:
            return f"/static/{self._read(ENTRY)[1]}/{ENTRY}"
        except OSError:
            return f"/static/{ENTRY}"  # not built; asking for it gives a page that says so

    def respond(self, request: Request, path: str) -> Response:
        """Answer ``<name>`` (asked for every time) or ``<hash>/<name>`` (kept by the browser if the hash is right)."""
        version, _, name = path.rpartition("/")
        if name not in TYPES:
            raise errors.NotFoundError("no such file in the Cockpit bundle")
        try:
            content, current = self._read(name)
        except OSError:
            # A module that says so: TensorBoard shows nothing at all where a module is missing.
            return http_util.Respond(request, NOT_BUILT, TYPES[name], expires=0)
        expires = ONE_YEAR if version == current else 0
        return http_util.Respond(request, content, TYPES[name], expires=expires, content_encoding="gzip")

    def _read(self, name: str) -> tuple[bytes, str]:
        path = self._folder / name
        stat = path.stat()
        version = (stat.st_mtime_ns, stat.st_size)
        known = self._known.get(name)
        if known is None or known[0] != version:
            raw = path.read_bytes()
            known = (version, gzip.compress(raw, 6, mtime=0), hashlib.sha256(raw).hexdigest()[:20])
            self._known[name] = known
        return known[1], known[2]
