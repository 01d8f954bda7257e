"""Each problem beside a second implementation from the benchmark's description: plain formulas, no ``nn.Module``."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cockpit_core import problems
from cockpit_core.problems.base import Problem, Split, hold_out
from cockpit_core.problems.cifar import crop_and_mirror

COUNTS = {
    "cifar100_allcnnc": 1_387_108,
    "cifar10_3c3d": 895_210,
    "digits_mlp": 12_060,
    "fmnist_2c2d": 3_274_634,
    "fmnist_mlp": 1_336_610,
    "fmnist_vae": 10_151_489,
    "mnist_logreg": 7_850,
    "mnist_mlp": 1_336_610,
    "mnist_vae": 10_151_489,
    "mobydick_char_rnn": 288_864,
    "quadratic_deep": 100,
    "svhn_3c3d": 895_210,
}


# ---- the second implementation: TensorFlow's "same" padding by its formula, convolutions as matrix products ----------


def pad_same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    for dim in (2, 3):
        size = x.shape[dim]
        total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
        before = total // 2
        shape = list(x.shape)
        shape[dim] = before
        first = torch.full(shape, value)
        shape[dim] = total - before
        x = torch.cat([first, x, torch.full(shape, value)], dim)
    return x


def conv(x: Tensor, w: Tensor, b: Tensor, stride: int = 1, same: bool = False) -> Tensor:
    out, _, k, _ = w.shape
    x = pad_same(x, k, stride) if same else x
    windows = x.unfold(2, k, stride).unfold(3, k, stride)  # [B, C, h, w, k, k]
    return torch.einsum("bchwij,ocij->bohw", windows, w) + b.view(1, out, 1, 1)


def conv_back(x: Tensor, w: Tensor, b: Tensor, stride: int, size: int) -> Tensor:
    """What the transposed convolution of "same" padding is: each pixel paints its kernel, the border is cut off."""
    n, _, h, _ = x.shape
    k, out = w.shape[2], w.shape[1]
    canvas = torch.zeros(n, out, (h - 1) * stride + k, (h - 1) * stride + k)
    for i in range(h):
        for j in range(h):
            patch = torch.einsum("bc,coij->boij", x[:, :, i, j], w)
            top, left, end = i * stride, j * stride, canvas.shape[2] - k
            canvas = canvas + F.pad(patch, (left, end - left, top, end - top))
    before = (canvas.shape[2] - size) // 2
    return canvas[:, :, before : before + size, before : before + size] + b.view(1, out, 1, 1)


def pool(x: Tensor, k: int) -> Tensor:
    return pad_same(x, k, 2, -math.inf).unfold(2, k, 2).unfold(3, k, 2).amax((-1, -2))


def cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    return (scores.exp().sum(1).log() - scores.gather(1, y.unsqueeze(1)).squeeze(1)).mean()


def dense(x: Tensor, p: list[Tensor]) -> Tensor:
    """Layers of weight and bias with ReLU between them."""
    for i in range(0, len(p), 2):
        x = x @ p[i].T + p[i + 1]
        x = x.clamp(min=0) if i + 2 < len(p) else x
    return x


def loss_mlp(p: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(dense(x.reshape(len(x), -1), p), y)


def loss_2c2d(p: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    for i in (0, 2):
        x = pool(conv(x, p[i], p[i + 1], same=True).clamp(min=0), 2)
    return cross_entropy(dense(x.reshape(len(x), -1), p[4:]), y)


def loss_3c3d(p: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    for i, same in ((0, False), (2, False), (4, True)):
        x = pool(conv(x, p[i], p[i + 1], same=same).clamp(min=0), 3)
    return cross_entropy(dense(x.reshape(len(x), -1), p[6:]), y)


def loss_all_cnn_c(p: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    for layer in range(9):
        stride, same = (2 if layer in (2, 5) else 1), layer != 6
        x = conv(x, p[2 * layer], p[2 * layer + 1], stride, same).clamp(min=0)
    return cross_entropy(x.mean((2, 3)), y)


def loss_quadratic(p: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    random = np.random.RandomState(42)
    values = np.concatenate((random.uniform(0, 1, 90), random.uniform(30, 60, 10)))
    frame, r = np.linalg.qr(random.normal(size=(100, 100)))
    frame = frame @ np.diag(np.sign(np.diag(r)))
    q = torch.tensor(frame @ np.diag(values) @ frame.T, dtype=torch.float32)
    return torch.einsum("ni,ij,nj->n", p[0] - x, q, p[0] - x).mean() / 100


def loss_vae(p: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Without dropout; the noise is drawn as the network draws it, from the same seed."""

    def leaky(h: Tensor) -> Tensor:
        return torch.where(h > 0, h, 0.3 * h)

    h = leaky(conv(x, p[0], p[1], 2, True))
    h = leaky(conv(h, p[2], p[3], 2, True))
    h = leaky(conv(h, p[4], p[5], 1, True)).reshape(len(x), -1)
    mean, deviation = h @ p[6].T + p[7], (h @ p[8].T + p[9]) / 2
    h = mean + torch.randn(len(x), 8) * deviation.exp()
    h = leaky(h @ p[10].T + p[11])
    h = leaky(h @ p[12].T + p[13]).reshape(-1, 1, 7, 7)
    h = conv_back(h, p[14], p[15], 2, 14).clamp(min=0)
    h = conv_back(h, p[16], p[17], 1, 14).clamp(min=0)
    h = conv_back(h, p[18], p[19], 1, 14).clamp(min=0).reshape(len(x), -1)
    picture = 1 / (1 + (-(h @ p[20].T + p[21])).exp())
    error = ((picture - x.reshape(len(x), -1)) ** 2).sum(1)
    variance = (2 * deviation).exp()
    divergence = ((variance + mean**2 - 1 - variance.log()) / 2).sum(1)
    return (error + divergence).mean()


def loss_characters(p: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    embed, cells, (w, b) = p[0], (p[1:5], p[5:9]), p[9:]
    sequence = [embed[x[:, t]] for t in range(x.shape[1])]
    for wi, wh, bi, bh in cells:
        h = c = torch.zeros(len(x), 128)
        outputs = []
        for step in sequence:
            i, f, g, o = (step @ wi.T + bi + h @ wh.T + bh).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        sequence = outputs
    scores = torch.stack([h @ w.T + b for h in sequence], 1).reshape(-1, 96)
    return cross_entropy(scores, y.reshape(-1))


TWINS = {
    "mnist_logreg": (loss_mlp, (1, 28, 28), 10),
    "mnist_mlp": (loss_mlp, (1, 28, 28), 10),
    "fmnist_2c2d": (loss_2c2d, (1, 28, 28), 10),
    "cifar10_3c3d": (loss_3c3d, (3, 32, 32), 10),
    "cifar100_allcnnc": (loss_all_cnn_c, (3, 32, 32), 100),
    "mnist_vae": (loss_vae, (1, 28, 28), 0),
    "digits_mlp": (loss_mlp, (64,), 10),
}


def make_batch(name: str) -> tuple[Tensor, Tensor]:
    if name == "quadratic_deep":
        x = 0.6 * torch.randn(4, 100)
        return x, torch.zeros_like(x)
    if name == "mobydick_char_rnn":
        text = torch.randint(0, 96, (4, 11))
        return text[:, :-1], text[:, 1:].contiguous()
    _, shape, classes = TWINS[name]
    x = torch.rand(4, *shape)
    return x, torch.randint(0, classes, (4,)) if classes else x


@pytest.mark.parametrize("name", [*TWINS, "quadratic_deep", "mobydick_char_rnn"])
def test_first_loss_and_one_step_of_sgd_equal_a_second_implementation(name: str) -> None:
    twin = {"quadratic_deep": loss_quadratic, "mobydick_char_rnn": loss_characters}.get(name) or TWINS[name][0]
    model, loss_fn = problems.find(name).build(3)
    for module in model.modules():  # dropout cannot be compared
        module.eval() if "Dropout" in type(module).__name__ else None
        if isinstance(module, torch.nn.LSTM):
            module.dropout = 0.0
    trained = [p for p in model.parameters() if p.requires_grad]
    copies = [p.detach().clone().requires_grad_() for p in trained]
    inputs, targets = make_batch(name)
    torch.manual_seed(7)
    loss = loss_fn(model(inputs), targets)
    optimizer = torch.optim.SGD(trained, lr=0.1)
    loss.backward()
    optimizer.step()
    torch.manual_seed(7)
    expected = twin(copies, inputs, targets)
    expected.backward()
    torch.testing.assert_close(loss.detach(), expected.detach(), rtol=1e-5, atol=1e-6)
    for p, copy in zip(trained, copies, strict=True):
        torch.testing.assert_close(p.detach(), (copy - 0.1 * copy.grad).detach(), rtol=1e-3, atol=2e-5)
    assert any(copy.grad.abs().max() > 1e-4 for copy in copies), "a step that changes nothing would show nothing"


def test_every_problem_has_the_number_of_parameters_of_its_benchmark() -> None:
    assert problems.names() == sorted(COUNTS)
    for name, count in COUNTS.items():
        problem = problems.find(name)
        assert problem.name == name
        assert sum(p.numel() for p in problem.build()[0].parameters() if p.requires_grad) == count


def test_networks_begin_as_the_benchmark_says() -> None:
    weights = problems.find("mnist_mlp").build()[0][1].weight
    assert weights.abs().max() <= 0.06
    # A normal distribution that is cut at two deviations keeps 0.8796 of its deviation.
    assert float(weights.detach().std()) == pytest.approx(0.03 * 0.8796, rel=0.01)
    first = problems.find("fmnist_2c2d").build()[0][0]
    assert torch.all(first.bias == 0.05)
    assert torch.all(problems.find("mnist_logreg").build()[0][1].weight == 0)
    conv1 = problems.find("cifar10_3c3d").build()[0][0]
    assert float(conv1.weight.detach().std()) == pytest.approx(math.sqrt(2 / (25 * (3 + 64))), rel=0.05)
    assert torch.all(problems.find("cifar100_allcnnc").build()[0][1].bias == 0.1)


def test_seeds_fix_the_network_and_the_order_of_the_batches() -> None:
    problem = problems.find("digits_mlp")
    one, two, other = (problem.build(seed)[0][0].weight for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    train = problem.load().train
    first, second = (next(train.shuffle(64, torch.Generator().manual_seed(5)))[0] for _ in range(2))
    assert torch.equal(first, second)
    batches = list(train.shuffle(64, torch.Generator().manual_seed(5)))
    assert len(batches) == len(train) // 64


def test_validation_samples_are_held_out_and_the_same_for_every_seed() -> None:
    torch.manual_seed(1)
    (train, _), (valid, _) = hold_out(torch.arange(100), torch.arange(100))
    torch.manual_seed(2)
    assert torch.equal(valid, hold_out(torch.arange(100), torch.arange(100))[1][0])
    assert len(valid) == 20
    assert sorted(torch.cat([train, valid]).tolist()) == list(range(100))


def test_measuring_leaves_mode_and_random_state_as_they_were() -> None:
    problem = problems.find("mnist_vae")
    model, loss_fn = problem.build()
    split = Split(torch.randint(0, 256, (3, 28, 28), dtype=torch.uint8), None, lambda x: x.unsqueeze(1) / 255)
    state = torch.get_rng_state()
    found = [problem.measure(model, loss_fn, split, batch_size=2) for _ in range(2)]
    assert found[0] == found[1]
    assert set(found[0]) == {"loss"}
    assert model.training
    assert torch.equal(state, torch.get_rng_state())


def test_accuracy_counts_right_answers_of_all_batches() -> None:
    problem = problems.find("digits_mlp")
    scores = torch.eye(64)[:, :10] @ torch.eye(10)
    model = torch.nn.Linear(64, 10, bias=False)
    model.weight.data = scores.T.contiguous()
    inputs = torch.eye(64)[[0, 1, 2, 3, 4]]
    split = Split(inputs, torch.tensor([0, 1, 2, 9, 9]))
    assert problem.measure(model, torch.nn.CrossEntropyLoss(), split, 2)["accuracy"] == pytest.approx(0.6)


def test_cropping_takes_windows_of_the_padded_picture_and_mirrors_half() -> None:
    images = torch.arange(1, 64 * 3 * 32 * 32 + 1, dtype=torch.float32).reshape(64, 3, 32, 32)
    result = crop_and_mirror(images, torch.Generator().manual_seed(0))
    padded, mirrored = F.pad(images, (2, 2, 2, 2)), 0
    for image, whole in zip(result, padded, strict=True):
        windows = [whole[:, i : i + 32, j : j + 32] for i in range(5) for j in range(5)]
        plain = any(torch.equal(image, window) for window in windows)
        flipped = any(torch.equal(image, window.flip(2)) for window in windows)
        assert plain != flipped
        mirrored += flipped
    assert 16 < mirrored < 48


def test_an_unknown_problem_lists_the_known_ones() -> None:
    with pytest.raises(problems.UnknownName, match=r"there is no problem 'mnist_cnn'; there are .*mnist_mlp"):
        problems.find("mnist_cnn")
    with pytest.raises(problems.UnknownName, match="no_such_module"):
        problems.find("no_such_module:thing")
    with pytest.raises(problems.UnknownName, match="gives a OrderedDict"):
        problems.find("collections:OrderedDict")


def test_a_problem_of_ones_own_is_one_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_problems.py").write_text(
        "import dataclasses\nfrom cockpit_core import problems\n"
        "def mine():\n    return dataclasses.replace(problems.find('digits_mlp'), name='mine', batch_size=8)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = problems.find("my_problems:mine")
    assert isinstance(found, Problem)
    assert found.batch_size == 8


def test_another_number_of_parameters_is_an_error() -> None:
    import dataclasses

    wrong = dataclasses.replace(problems.find("digits_mlp"), parameters=7)
    with pytest.raises(ValueError, match="must have 7 parameters, but this network has 12,060"):
        wrong.build()
