"""What the header says, as numbers: the optimizer's settings and the kind of loss."""

from __future__ import annotations

import math
import re

from cockpit_core.foundation.records import Header

CLASS_LOSSES = ("CrossEntropyLoss", "NLLLoss")
VALUE_LOSSES = ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss")
BINARY_LOSSES = ("BCELoss", "BCEWithLogitsLoss")
LIKELIHOODS = ("PoissonNLLLoss", "GaussianNLLLoss")
TRIPLETS = ("TripletMarginLoss", "TripletMarginWithDistanceLoss")
NEVER_NEGATIVE = ("CrossEntropyLoss", *VALUE_LOSSES, *BINARY_LOSSES)
KNOWN_LOSSES = (*CLASS_LOSSES, *VALUE_LOSSES, *BINARY_LOSSES)
ADAPTIVE = ("adam", "rmsprop", "adagrad", "adadelta", "lion", "adafactor", "adamax")


class Facts:
    """The settings of the first parameter group that has them; NaN where none has."""

    def __init__(self, header: Header):
        self.options = header.options
        by_graph = header.options.get("loss function", "")  # of a module that was named and never called, too
        self.by_module = header.loss in KNOWN_LOSSES and by_graph in ("", header.loss)
        self.loss = header.loss if self.by_module else by_graph or header.loss
        self.quantities = {quantity.name for quantity in header.quantities}
        self.layers = [layer.name for layer in header.layers]
        self.sizes = [layer.size for layer in header.layers]
        self.shapes = [layer.shape for layer in header.layers]
        self.groups = [group for optimizer in header.optimizers for group in optimizer.groups]
        self.optimizer = header.optimizers[0].name if header.optimizers else ""
        self.single = len(header.optimizers) == 1
        self.adaptive = any(name in self.optimizer.lower() for name in ADAPTIVE)
        self.momentum = self.setting("momentum")
        betas = re.findall(r"[\d.eE+-]+", next((g["betas"] for g in self.groups if "betas" in g), ""))
        self.beta1 = _number(betas[0]) if betas else math.nan
        self.weight_decay = max((_number(g.get("weight_decay", "")) for g in self.groups), default=math.nan)
        self.eps = self.setting("eps")
        self.decoupled = self.optimizer == "AdamW" or any(
            g.get("decoupled_weight_decay") == "True" for g in self.groups
        )
        # RMSprop does not correct for the mean of squares that begins at zero: its first step is 10 times as long (alpha 0.99).
        self.rms_decay = self.setting("alpha") if self.optimizer == "RMSprop" else 0.0
        self.plain_sgd = self.optimizer == "SGD" and not any(g.get("nesterov") == "True" for g in self.groups)

    def setting(self, name: str) -> float:
        values = [_number(group[name]) for group in self.groups if name in group]
        return values[0] if values else math.nan

    @property
    def inertia(self) -> float:
        """Heavy-ball momentum or Adam's first beta, 0 where there is none."""
        return next((x for x in (self.beta1, self.momentum) if x == x), 0.0)

    @property
    def is_value(self) -> bool:
        return self.loss in VALUE_LOSSES

    @property
    def may_be_noise(self) -> bool:
        """Real targets, or counts, or nobody knows what: they may be mostly noise, so that little can be learned of them, and
        that slowly."""
        return self.loss not in (*CLASS_LOSSES, *BINARY_LOSSES)

    def names(self, option: str) -> list[str]:
        text = self.options.get(option, "")
        return text.split("\n") if text else []


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
