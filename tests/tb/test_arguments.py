"""Nothing that a request says is believed."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from tensorboard import errors
from werkzeug.test import EnvironBuilder
from werkzeug.wrappers import Request

from tb_plugin import arguments
from tb_plugin.assets import Assets


def make_request(query: str = "", method: str = "GET", **headers: str) -> Request:
    return Request(EnvironBuilder(path="/", query_string=query, method=method, headers=headers).get_environ())


@pytest.mark.parametrize(
    "value",
    ["-1", "NaN", "nan", "inf", "1e3", "1.0", "0x10", " 1", "+1", "1_000", "٣", "4294967296", "9" * 40, "", "%00"],
)
def test_a_number_is_plain_digits_within_the_range(value: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="whole number from 0 to"):
        arguments.integer(make_request(f"step={value}"), "step")


@pytest.mark.parametrize(("value", "expected"), [("0", 0), ("007", 7), ("4294967295", 4294967295)])
def test_a_number_in_the_range_is_taken(value: str, expected: int) -> None:
    assert arguments.integer(make_request(f"step={value}"), "step") == expected


def test_a_range_of_its_own_is_kept() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="0 to 100"):
        arguments.integer(make_request("max_points=101"), "max_points", largest=100)


def test_an_absent_argument_takes_its_default_or_is_refused() -> None:
    assert arguments.integer(make_request(), "since", 3) == 3
    with pytest.raises(errors.InvalidArgumentError, match="run is missing"):
        arguments.text(make_request(), "run")


def test_an_argument_given_twice_is_refused() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="2 times"):
        arguments.text(make_request("run=a&run=b"), "run")


def test_a_text_that_no_name_needs_is_refused() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="too long"):
        arguments.text(make_request("layer=" + "x" * 70_000), "layer")


@pytest.mark.parametrize("value", ["2", "true", "-1", "", "01"])
def test_a_switch_is_nothing_but_0_or_1(value: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="0 or 1"):
        arguments.flag(make_request(f"layers={value}"), "layers", True)


def test_names_may_hold_commas_and_markup() -> None:
    request = make_request("names=a,b&names=%3Cb%3E&names=")
    assert arguments.names(request) == ["a,b", "<b>"]
    assert arguments.names(make_request("names=")) is None


def test_a_flood_of_names_is_refused() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="too many"):
        arguments.names(make_request("&".join(["names=x"] * 10_001)))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_only_reading_is_served(method: str) -> None:
    with pytest.raises(arguments.MethodNotAllowed) as caught:
        arguments.check_method(make_request(method=method))
    assert caught.value.http_code == 405
    assert ("Allow", "GET, HEAD") in caught.value.headers


@pytest.fixture
def assets(tmp_path: Path) -> Assets:
    (tmp_path / "index.js").write_text("export const answer = 42;\n")
    (tmp_path / "secret.txt").write_text("nobody")
    (tmp_path.parent / "outside.js").write_text("nobody")
    return Assets(tmp_path)


def test_the_address_of_the_bundle_changes_with_its_content(assets: Assets, tmp_path: Path) -> None:
    before = assets.entry_path()
    (tmp_path / "index.js").write_text("export const answer = 4321;\n")
    after = assets.entry_path()
    assert before != after
    assert before.startswith("/static/")
    assert before.endswith("/index.js")


def test_only_the_right_address_is_kept_by_the_browser(assets: Assets) -> None:
    request = make_request(**{"Accept-Encoding": "gzip"})
    kept = assets.respond(request, assets.entry_path().removeprefix("/static/"))
    asked = assets.respond(request, "index.js")
    stale = assets.respond(request, "0123456789abcdef0123/index.js")
    assert "max-age=31536000" in kept.headers["Cache-Control"]
    assert "no-cache" in asked.headers["Cache-Control"]
    assert "no-cache" in stale.headers["Cache-Control"]
    assert kept.headers["Content-Type"].startswith("text/javascript")
    assert gzip.decompress(kept.get_data()) == b"export const answer = 42;\n"


@pytest.mark.parametrize(
    "path",
    [
        "secret.txt",
        "../outside.js",
        "..%2foutside.js",
        "/etc/passwd",
        "",
        "index.js/",
        "index.js\x00",
        "a/b/../secret.txt",
    ],
)
def test_no_path_leaves_the_list_of_files(assets: Assets, path: str) -> None:
    with pytest.raises(errors.NotFoundError):
        assets.respond(make_request(), path)


def test_a_bundle_that_was_not_built_is_said_so(tmp_path: Path) -> None:
    """TensorBoard imports the module and calls ``render``: a 404 would leave the tab blank."""
    empty = Assets(tmp_path)
    assert empty.entry_path() == "/static/index.js"
    response = empty.respond(make_request(), "index.js")
    program = response.get_data(as_text=True)
    assert response.status_code == 200 and response.mimetype == "text/javascript"
    assert "export function render()" in program and "was not built" in program
