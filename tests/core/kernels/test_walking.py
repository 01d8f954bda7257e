"""Many layers with one call, shared by threads: each has the numbers that it would have alone, however many threads come."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
from torch import Tensor

from cockpit_core.kernels import native, threads
from cockpit_core.kernels.native import walking
from cockpit_core.layers.conv import Patches
from tests.core.kernels.test_native import LEVELS, SHAPES, TOLERANCE, WIDE, make_patches


@pytest.fixture(params=[1, 3])
def number_of_threads(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def make_layers(dtype: torch.dtype, around: int = 0) -> list[tuple[Patches, Tensor]]:
    """Dense output gradients of every shape; with ``around`` the zeros are put there by the kernel."""
    layers = []
    for name in SHAPES:
        part, directions = make_patches(name, dtype)
        left = 0.02 * torch.randn_like(part.left)
        inner = part.image
        if around and all(size > 2 * around for size in inner.shape[2:]):
            inside = (..., *(slice(around, size - around) for size in inner.shape[2:]))
            room = (around,) * (2 * (inner.dim() - 2))
            part = Patches(left, inner[inside], part.geometry, part.groups, part.shape, part.scale, room)
        else:
            part = Patches(left, inner, part.geometry, part.groups, part.shape, part.scale)
        layers.append((part, directions[0]))
    return layers


def fold(part: Patches, direction: Tensor) -> walking.Folded:
    own = part.left, part.inner, part.geometry, part.groups, tuple(part.shape), part.scale, part.around
    return walking.Folded(*own, direction)


@pytest.mark.usefixtures("number_of_threads")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("around", [0, 1])
@pytest.mark.parametrize("images", [1, 2**16])
def test_convolutions_have_the_numbers_of_formed_gradients(
    level: str, dtype: torch.dtype, around: int, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walking, "find_library", lambda: native.open_level(level))
    monkeypatch.setattr(walking, "ALONE", 1)
    monkeypatch.setattr(walking, "IMAGES", images)
    layers = make_layers(dtype, around)
    walking.take_room(2**20, dtype).fill_(float("nan"))  # nothing may depend on what lay there
    for (part, direction), own in zip(layers, walking.reduce_convolutions([fold(*o) for o in layers]), strict=True):
        twin = Patches(part.left.double(), part.image.double(), part.geometry, part.groups, part.shape, part.scale)
        G, along = twin.form(0, part.samples).flatten(1), direction.double().flatten()
        torch.testing.assert_close(own.norms, G.square().sum(1), rtol=TOLERANCE[dtype], atol=0)
        assert ((own.dots[:, 0] - G @ along).abs() <= 10 * TOLERANCE[dtype] * G.norm(dim=1) * along.norm()).all()


def test_numbers_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "ALONE", 1)
    layers, before, seen = [fold(*own) for own in make_layers(torch.float32)], torch.get_num_threads(), []
    for number in (1, 2, 4):
        torch.set_num_threads(number)
        seen.append([torch.cat([own.norms, own.dots[:, 0]]) for own in walking.reduce_convolutions(layers)])
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in seen[1:] for a, b in zip(seen[0], other, strict=True))


@pytest.mark.parametrize("what", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_with_its_sample(what: float) -> None:
    (part, direction), *_ = make_layers(torch.float32)
    part.inner[1].view(-1)[0] = what
    (own,) = walking.reduce_convolutions([fold(part, direction)])
    assert own.norms.isfinite().tolist() == [n != 1 for n in range(part.samples)]


def test_what_does_not_fit_is_refused() -> None:
    """A kernel would read what is not there."""
    (part, direction), *_ = make_layers(torch.float32)
    good = fold(part, direction)
    for name, value in {
        "direction": direction.flatten()[:-1],
        "image": part.inner[:-1],
        "shape": (part.shape[0] + 1, *part.shape[1:]),
        "left": part.left[:, :, 1:].repeat_interleave(3, 2),
    }.items():
        with pytest.raises(ValueError, match="fit"):
            walking.reduce_convolutions([walking.Folded(**{**vars(good), name: value})])
    with pytest.raises(TypeError, match="one dtype"):
        walking.reduce_convolutions([walking.Folded(**{**vars(good), "direction": direction.double()})])


@pytest.mark.parametrize("team", [True, False])
def test_shares_are_done_with_and_without_the_threads_of_torch(team: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not team:
        monkeypatch.setattr(threads, "find_team", lambda: None)
    monkeypatch.setattr(walking, "ALONE", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    layers = make_layers(torch.float32)
    own = walking.reduce_convolutions([fold(*layer) for layer in layers])
    shared = threads.share(lambda low, high: (low, high), [(k, k + 1) for k in range(5)])
    torch.set_num_threads(before)
    assert shared == [(k, k + 1) for k in range(5)]
    assert all(float(reduced.norms.min()) > 0 for reduced in own)


def share_in_a_child(connection: multiprocessing.connection.Connection) -> None:
    connection.send(threads.share(lambda low, high: low, [(0, 1), (1, 2)]))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    threads.share(lambda low, high: low, [(0, 1), (1, 2)])  # the threads are there
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=share_in_a_child, args=(there,))
    child.start()
    answered = here.poll(60)
    torch.set_num_threads(before)
    if not answered:
        child.kill()
    child.join()
    assert answered and here.recv() == [0, 1]
