"""Figure 10: as Figure 3, with VGG16 and one photograph."""

from __future__ import annotations

import torch
from torch import nn

from experiments.figure_03 import draw
from experiments.first_step import measure
from experiments.report import Arguments, Experiment, run

WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def make_vgg16() -> nn.Module:
    layers: list[nn.Module] = []
    inner = 3
    for block in WIDTHS:
        for outer in block:
            layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU()]
            inner = outer
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(25088, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            nn.init.xavier_normal_(layer.weight)
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def load_photograph() -> torch.Tensor:
    """The flower that comes with scikit-learn, 224 x 224 pixels from 0 to 1. [1, 3, 224, 224]"""
    from sklearn.datasets import load_sample_image

    image = torch.from_numpy(load_sample_image("flower.jpg").copy()).permute(2, 0, 1).unsqueeze(0) / 255
    image = image[:, :, :, 106:533]
    return nn.functional.interpolate(image, (224, 224), mode="area")


def carry_out(arguments: Arguments) -> tuple[Experiment, object]:
    settings = (
        "VGG16 (138,357,544 parameters, new) at step 0, one photograph, 40 x 50 bins on (-1.5, 1.5) x (-0.2, 0.2)"
    )
    experiment = Experiment(10, "Raw pixels, VGG16", settings, arguments.quick)
    image, label, steps = load_photograph(), torch.tensor([7]), {}
    for factor in (1.0, 255.0):
        torch.manual_seed(0)
        steps[factor] = measure(
            make_vgg16(), nn.CrossEntropyLoss(), (image * factor, label), arguments.logdir / f"{factor:g}",
            gradients=(-1.5, 1.5), parameters=(-0.2, 0.2), bins=(40, 50),
        )  # fmt: skip
    scaled, raw = steps[1.0], steps[255.0]
    outside = [int(step.counts[[0, -1]].sum()) for step in (scaled, raw)]
    total = int(raw.counts.sum())
    words = f"{outside[0]:,} (scaled) and {outside[1]:,} (raw) of {total:,} elements in the outermost bins"
    experiment.claim("Raw pixels leave the range", "by eye", words, outside[1] > 10 * max(outside[0], 1))
    typical = raw.norm / 138_357_544**0.5
    experiment.remark(
        f"With raw pixels a typical element is {typical:.1g}, far inside the range of 1.5: with this initialisation and one "
        "picture the gradients grow with the pixels, but not beyond the bins. The paper does not say which weights it had."
    )
    if total < 138_357_544:
        experiment.remark(f"The histogram holds {total:,} of 138,357,544 elements: the largest dense layer has none.")
    words = f"gradient norm {scaled.norm:.3g} (scaled), {raw.norm:.3g} (raw)"
    experiment.claim("Gradients grow with the pixels", "by eye", words, raw.norm > 10 * scaled.norm)
    return experiment, draw(scaled, raw)


if __name__ == "__main__":
    run(10, "Raw pixels, VGG16", carry_out)
