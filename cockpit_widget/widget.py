"""``CockpitWidget``: the notebook host of the panels.

The widget owns no data: the log directory does. While a cell is busy the browser cannot ask for anything, so everything
it may need is pushed: deltas as custom messages, and now and then a bounded keyframe into the synced state, which is
also what a late view, a reloaded page and a saved notebook start from.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from cockpit_widget.feed import Feed, Message
from cockpit_widget.kernel import after_each_cell, find_cell, silence
from cockpit_widget.lens import ShowSample
from cockpit_widget.memory import recall, remember
from cockpit_widget.requests import answer
from cockpit_widget.sources import Tail, make_sources, say_left_out
from cockpit_widget.throttle import Clock, Limits, Throttle

PROTOCOL = 1
_STATIC = Path(__file__).parent / "static"
_NO_BUNDLE = """export default { render({ el }) {
  el.textContent = "Cockpit's JavaScript was not built: run `npm ci && npm run build` in the clone.";
} };"""


def read_bundle(name: str = "widget.js") -> str:
    """The bundle as a string: a path would make anywidget keep every instance alive."""
    path = _STATIC / name
    return path.read_text(encoding="utf-8") if path.is_file() else _NO_BUNDLE


class CockpitWidget(anywidget.AnyWidget):
    """The cockpit of one run or several, live.

    ``runs`` is what ``cockpit_core.track`` returned, a log directory that another process writes, or a list of those.
    It begins as a strip of about 300 pixels (health, loss, three sparklines), so that the cell below stays in view; a
    button there shows all panels, and ``compact=False`` begins with them. ``panels`` names the panels to show (default:
    all), ``height`` is in pixels (0: as tall as needed), ``theme`` is "auto", "light" or "dark", ``refresh_rate`` the
    updates per second (default: 5, fewer on long runs; at most 10), ``poster`` whether a static picture goes along for
    places that show no widgets. ``show_sample`` turns the id of a sample into what the list of hard samples shows for
    it:
    text, an array, a picture of PIL or matplotlib, PNG bytes, or a pair of text and picture.
    """

    _keyframe = traitlets.Bytes(b"").tag(sync=True)
    _meta = traitlets.Dict().tag(sync=True)
    status = traitlets.Dict().tag(sync=True)
    ui = traitlets.Dict().tag(sync=True)
    panels = traitlets.List(traitlets.Unicode()).tag(sync=True)
    height = traitlets.Int(0).tag(sync=True)
    compact = traitlets.Bool(True).tag(sync=True)
    theme = traitlets.Enum(["auto", "light", "dark"], "auto").tag(sync=True)

    def __init__(
        self,
        runs: Any,
        *,
        panels: Sequence[str] = (),
        height: int = 0,
        compact: bool = True,
        theme: str = "auto",
        refresh_rate: float | None = None,
        poster: bool = True,
        show_sample: ShowSample | None = None,
        clock: Clock = time.monotonic,
        limits: Limits | None = None,
    ) -> None:
        if show_sample is not None and not callable(show_sample):
            raise TypeError(f"show_sample is a function of a sample's id, got {show_sample!r:.80}")
        sources = make_sources(runs)
        self._show_sample = show_sample
        self._feed = Feed(sources, Throttle(refresh_rate, clock=clock, limits=limits), clock=clock)
        self._names, self._cell = tuple(source.key for source in sources), find_cell()
        self._poster, self._display_ids = poster, list[str]()
        self._endings: list[Callable[[], None]] = []
        self._esm = read_bundle()
        super().__init__(
            panels=list(panels),
            height=height,
            compact=compact,
            theme=theme,
            ui=recall(self._names, self._cell),
            status=self._feed.status(),
            _meta={
                "protocol": PROTOCOL,
                "runs": [source.describe(i) for i, source in enumerate(sources)],
                "interval": self._feed.throttle.interval(),
                "shows_samples": show_sample is not None,
                "left_out": say_left_out(runs),
            },
        )
        self.on_msg(_receive)
        self.observe(_remember, "ui")
        silence(self.comm)
        self._feed.begin()
        self._start()

    def _start(self) -> None:
        """Follow the runs. Whoever calls us back holds us weakly: no run and no thread keeps a dead widget alive."""
        me = weakref.ref(self)
        with self._feed.lock:  # a run that trains in another thread may call back before the last one is subscribed
            for source in self._feed.sources:
                unsubscribe = source.subscribe(_weakly(me, CockpitWidget._tick), self._feed.throttle)
                if unsubscribe is not None:
                    self._endings.append(unsubscribe)
        if any(source.tailed for source in self._feed.sources):
            tail = Tail(_weakly(me, CockpitWidget._poll))
            tail.start()
            self._endings.append(tail.stop)
        unregister = after_each_cell(_weakly(me, CockpitWidget._pause))
        if unregister is not None:
            self._endings.append(unregister)

    def close(self) -> None:
        """End everything: the subscription, the thread, the comm."""
        for end in getattr(self, "_endings", []):
            end()
        self._endings = []
        super().close()

    # ---- kernel -> browser -------------------------------------------------------------------------------------------

    def _tick(self) -> bool:
        """On the training thread, after a record, when a message is due or the run has ended. Never raises."""
        if self._feed.tick(self._deliver) and self._feed.take_ending():
            self._feed.guard(self._renew_posters)
        return True

    def _pause(self) -> bool:
        """After a cell: what the throttle held back is sent now, because nobody knows when the next record comes."""
        self._feed.tick(self._deliver, force=True)
        return True

    def _poll(self) -> bool:
        """On the tail's thread. False when every run has ended: there is nothing more to wait for."""
        self._tick()
        return not self._feed.ended

    def _deliver(self, message: Message) -> None:
        """Bypasses the trait machinery, which is not thread-safe: one plain message per delta or keyframe."""
        self._trait_values["status"] = message.status
        if message.keyframe:
            self._trait_values["_keyframe"] = message.frames
            update = {"method": "update", "state": {"status": message.status}, "buffer_paths": [["_keyframe"]]}
            self._send(update, buffers=[message.frames])
        else:
            self.send({"op": "batch", "status": message.status, **message.extra}, buffers=[message.frames])

    def _send(self, msg: dict[str, Any], buffers: Any = None) -> None:
        if self.comm is None:
            return
        self.comm.send(data=msg, buffers=buffers)
        # ipykernel 7.4 notes from which shell we sent and routes the browser's messages there: to a busy main shell.
        getattr(self.comm, "__dict__", {}).pop("_reply_subshell_id", None)

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """The whole state is asked for when a page loads: answer with the newest, not with the last keyframe."""
        state: dict[str, Any] = super().get_state(key, drop_defaults)
        if key is None:
            message = self._feed.keyframe()
            if message is not None:
                state["_keyframe"], state["status"] = message.frames, message.status
        return state

    # ---- display -----------------------------------------------------------------------------------------------------

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle: Any = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle or {}, {})
        return {**data, **self._static_view()}, dict(metadata)

    def _ipython_display_(self) -> None:
        """As display data with an id, so that the picture can be replaced when the run ends."""
        from IPython.display import display

        data, metadata = self._repr_mimebundle_()
        handle = display(data, metadata=metadata, raw=True, display_id=True)
        if handle is not None:
            self._display_ids.append(handle.display_id)

    def _static_view(self) -> dict[str, Any]:
        """Words and a picture. Nobody else may read the runs meanwhile; if somebody reads for long, there are only
        words."""
        view: dict[str, Any] = {"text/plain": f"CockpitWidget({', '.join(self._names)})"}

        def draw() -> None:
            with self._feed.exclusively(2.0):
                self._feed.refresh()
                view["text/plain"] = "\n".join(["CockpitWidget", *(source.summary() for source in self._feed.sources)])
                if self._poster:
                    from cockpit_core.report.poster import try_draw_png

                    picture = try_draw_png([source.data for source in self._feed.sources if source.data is not None])
                    if picture:
                        view["image/png"] = picture

        self._feed.guard(draw)
        return view

    def _renew_posters(self) -> None:
        if not self._display_ids:
            return
        from IPython.display import update_display

        data, metadata = self._repr_mimebundle_()
        for display_id in self._display_ids:
            update_display(data, metadata=metadata, raw=True, display_id=display_id)


def _receive(widget: CockpitWidget, content: Any, buffers: Any) -> None:
    """The browser asked for something, perhaps on a thread of its own, perhaps minutes ago."""
    answer(widget._feed, content, lambda reply, frames: widget.send(reply, buffers=frames), widget._show_sample)


def _remember(change: Any) -> None:
    remember(change["owner"]._names, change["owner"]._cell, change["new"])


def _weakly(me: weakref.ref[CockpitWidget], method: Callable[[CockpitWidget], bool]) -> Callable[[], bool]:
    def call() -> bool:
        widget = me()
        return False if widget is None else method(widget)

    return call
