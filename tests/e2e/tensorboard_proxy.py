"""A proxy that strips a prefix, as jupyter-server-proxy does: TensorBoard behind it does not know its own address."""

from __future__ import annotations

import http.server
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stripping_proxy(target: str, prefix: str) -> Iterator[str]:
    """Serve ``target`` under ``prefix``; yields the outer address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(prefix):
                self.send_error(404, "outside of the prefix")
                return
            request = urllib.request.Request(target.rstrip("/") + self.path[len(prefix) :])
            for name in ("Accept", "Accept-Encoding"):
                if value := self.headers.get(name):
                    request.add_header(name, value)
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    self._pass_on(answer.status, answer.headers, answer.read())
            except urllib.error.HTTPError as error:
                with error:
                    self._pass_on(error.code, error.headers, error.read())

        def _pass_on(self, status: int, headers: object, body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():  # type: ignore[attr-defined]
                if name.lower() not in ("connection", "transfer-encoding", "date", "server"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet: pytest shows what matters."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{prefix}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
