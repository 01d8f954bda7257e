"""Checked arguments of a request. TensorBoard has no login and may listen to the whole network: nothing is believed.

Errors are TensorBoard's own, because it turns those into plain text; a werkzeug exception becomes a page that its
security validator complains about.
"""

from __future__ import annotations

import re

from tensorboard import errors
from werkzeug.wrappers import Request

UINT32_MAX = 2**32 - 1
MAX_POINTS = 10_000_000
MAX_NAMES = 10_000
# A layer or a run may be called whatever fits into a request line; the server itself stops at 64 kB.
MAX_TEXT = 65_536


class MethodNotAllowed(errors.PublicError):
    http_code = 405

    def __init__(self) -> None:
        super().__init__("Only GET and HEAD are served here.")
        self.headers.append(("Allow", "GET, HEAD"))


def check_method(request: Request) -> None:
    if request.method not in ("GET", "HEAD"):
        raise MethodNotAllowed()


def text(request: Request, name: str, default: str | None = None) -> str:
    """The one value of ``name``; without ``default`` it must be there."""
    values = request.args.getlist(name)
    if len(values) > 1:
        raise errors.InvalidArgumentError(f"{name} was given {len(values)} times, expected once")
    if not values:
        if default is None:
            raise errors.InvalidArgumentError(f"{name} is missing")
        return default
    if len(values[0]) > MAX_TEXT:
        raise errors.InvalidArgumentError(f"{name} is too long")
    return values[0]


def integer(request: Request, name: str, default: int | None = None, *, largest: int = UINT32_MAX) -> int:
    """A whole number from 0 to ``largest``, in plain ASCII digits."""
    value = text(request, name, None if default is None else str(default))
    if not re.fullmatch(r"[0-9]{1,10}", value) or int(value) > largest:
        raise errors.InvalidArgumentError(f"{name} must be a whole number from 0 to {largest}")
    return int(value)


def flag(request: Request, name: str, default: bool) -> bool:
    value = text(request, name, "1" if default else "0")
    if value not in ("0", "1"):
        raise errors.InvalidArgumentError(f"{name} must be 0 or 1")
    return value == "1"


def names(request: Request) -> list[str] | None:
    """``names=GradNorm&names=log/a,b``: once per name, because a name may hold any character. None means all."""
    values = [value for value in request.args.getlist("names") if value]
    if len(values) > MAX_NAMES or sum(map(len, values)) > MAX_TEXT:
        raise errors.InvalidArgumentError("names are too many or too long")
    return values or None
