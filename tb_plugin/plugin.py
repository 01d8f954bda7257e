"""The routes of the Cockpit tab. All of them only read, and only what TensorBoard itself has loaded."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Callable, Sequence
from typing import Any

from tensorboard import errors
from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug.wrappers import Request, Response

from tb_plugin import arguments
from tb_plugin.assets import Assets
from tb_plugin.cache import Cache
from tb_plugin.follower import Wanted
from tb_plugin.loader import PLUGIN_NAME
from tb_plugin.provider import Asker

BINARY = "application/octet-stream"
SAMPLE = 65_536  # bytes that are tried
WORTH = 0.8  # compressed only if that leaves less than this part
Handler = Callable[[Request], Response]


class CockpitPlugin(base_plugin.TBPlugin):
    """``/runs`` lists, ``/batch`` gives the columns of one run, ``/histogram`` one histogram, ``/static`` the page."""

    plugin_name = PLUGIN_NAME

    def __init__(self, context: base_plugin.TBContext) -> None:
        self._provider = context.data_provider
        self._cache = Cache()
        self._assets = Assets()

    def get_plugin_apps(self) -> dict[str, Any]:
        routes = {
            "/runs": self._serve_runs,
            "/batch": self._serve_batch,
            "/histogram": self._serve_histogram,
            "/static/*": self._serve_asset,
        }
        return {path: _guarded(handler) for path, handler in routes.items()}

    def is_active(self) -> bool:
        """TensorBoard asks this only if it knows of no data of ours. Looking for some here would slow down every
        start."""
        return False

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        return base_plugin.FrontendMetadata(es_module_path=self._assets.entry_path(), tab_name="Cockpit")

    def _serve_runs(self, request: Request) -> Response:
        runs = self._cache.list_runs(Asker.of(self._provider, request))
        return http_util.Respond(request, runs, "application/json")

    def _serve_batch(self, request: Request) -> Response:
        run = arguments.text(request, "run")
        since = arguments.integer(request, "since", 0)
        until = arguments.integer(request, "until", arguments.UINT32_MAX)
        if until < since:
            raise errors.InvalidArgumentError("until must not be less than since")
        max_points = arguments.integer(request, "max_points", 0, largest=arguments.MAX_POINTS)
        layers = arguments.flag(request, "layers", True)
        names = arguments.names(request)
        asker = Asker.of(self._provider, request)
        wanted = Wanted(since, until if until < arguments.UINT32_MAX else None, names, layers, max_points or None)
        content, to_seq = self._cache.encode_batch(asker, run, wanted)
        return _respond_binary(request, content, [("X-Cockpit-To-Seq", str(to_seq))])

    def _serve_histogram(self, request: Request) -> Response:
        run = arguments.text(request, "run")
        quantity = arguments.text(request, "quantity")
        step = arguments.integer(request, "step")
        layer = arguments.text(request, "layer", "")
        asker = Asker.of(self._provider, request)
        return _respond_binary(request, self._cache.read_histogram(asker, run, quantity, step, layer))

    def _serve_asset(self, request: Request) -> Response:
        return self._assets.respond(request, request.path.partition("/static/")[2])


def _respond_binary(request: Request, content: bytes, headers: Sequence[tuple[str, str]] = ()) -> Response:
    """TensorBoard compresses text only. Numbers that do not get smaller are sent as they are, which is quicker."""
    sample = content[:SAMPLE]
    if len(gzip.compress(sample, 1)) > WORTH * len(sample):
        return http_util.Respond(request, content, BINARY, headers=list(headers))
    # Level 1: the time to the first picture counts, not the last few bytes.
    packed = gzip.compress(content, 1, mtime=0)
    return http_util.Respond(request, packed, BINARY, content_encoding="gzip", headers=list(headers))


def _guarded(handler: Handler) -> Any:
    """A WSGI application that answers in plain text whatever happens."""

    def answer(request: Request) -> Response:
        try:
            arguments.check_method(request)
            return handler(request)
        except errors.PublicError:
            raise  # TensorBoard turns these into text/plain with the right code
        except Exception:
            logging.getLogger("tensorboard").exception("The Cockpit tab could not answer %r", request.path)
            sentence = "The Cockpit tab could not answer; the reason is in TensorBoard's log."
            return http_util.Respond(request, sentence, "text/plain", code=500)

    return Request.application(answer)
