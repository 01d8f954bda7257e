"""Every threshold of the diagnoses, with its unit, its reason, and what healthy runs show (1 to 99 %).

``low`` and ``high`` are the healthy range that a finding shows beside its number; ``value`` is where a rule begins to
speak, outside that range. The ranges are measured by ``benchmarks/diagnosis``.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Limit(NamedTuple):
    value: float
    low: float
    high: float
    unit: str
    meaning: str
    reason: str


_inf = math.inf
LIMITS: dict[str, Limit] = {
    "update": Limit(
        0.5,
        1e-6,
        0.1,
        "",
        "length of a step over that of the parameters",
        "a step of half the network's own length forgets what it was",
    ),
    "travelled": Limit(
        6,
        0,
        4,
        "",
        "distance from the start over the length there",
        "six own lengths away nothing of the initialisation is left",
    ),
    "edge": Limit(
        2.5,
        0,
        1.2,
        "of the limit",
        "largest eigenvalue over 2 (1 + momentum) / lr",
        "gradient descent grows beyond 1; good runs hover around 1",
    ),
    "spike": Limit(20, 0, 5, "", "highest loss over the first", "good runs rise by a few times at most"),
    "alpha": Limit(0.95, -1, 0.6, "", "where a step ends on the parabola along it", "1 is the opposite wall"),
    "steps_to_go": Limit(
        2000,
        3,
        1000,
        "steps",
        "L / (slope x length of a step)",
        "so many steps at this slope to bring the loss to zero",
    ),
    "edge_low": Limit(
        0.003,
        0.003,
        1.2,
        "of the limit",
        "largest eigenvalue over 2 (1 + momentum) / lr",
        "far longer steps would be stable",
    ),
    "gain_by_step": Limit(
        0.002, 0.003, 0.6, "", "share of its batch's loss that a step takes off", "hundreds of steps for any progress"
    ),
    "rise_by_step": Limit(
        0.01, 0, 0.01, "", "share of its batch's loss that a step adds to it", "less is what averaged directions do"
    ),
    "own_gain": Limit(
        0.1,
        0,
        0.1,
        "",
        "share that all steps so far took off their own batches' losses",
        "so much shows, if batches have anything in common",
    ),
    "straight": Limit(
        0.85,
        -10,
        0.85,
        "",
        "what a step 16 times as long gains, over 16 times as much",
        "1 = far longer steps do as well",
    ),
    "bent": Limit(
        0.3, 0.3, 1.1, "", "what a step gains over four times a quarter of it", "below 0 it ends beyond the valley"
    ),
    "rate_fall": Limit(0.15, 0.15, 1, "", "learning rate over its maximum", "below a seventh little happens any more"),
    "rate_mean": Limit(
        0.4,
        0.4,
        1,
        "",
        "mean learning rate over its maximum",
        "a half for cosine and linear decay, a third for exponential",
    ),
    "rate_gone": Limit(
        0.25,
        0,
        0.2,
        "",
        "share of the run at less than a thousandth of the highest rate",
        "healthy schedules end there",
    ),
    "update_low": Limit(
        1.5e-3, 1.5e-3, 0.1, "", "length of a step over that of the parameters", "usual first steps are 0.1 to 1 %"
    ),
    "clipped": Limit(
        0.03,
        0.1,
        1,
        "",
        "clipped over unclipped gradient",
        "a gradient cut to a thirtieth is a thirtieth of the learning rate",
    ),
    "decay_share": Limit(
        1.2, 0, 0.3, "", "pull of weight decay over that of the gradient", "above 1 decay decides where the weights go"
    ),
    "noise": Limit(3, 0, 3, "", "noise scale over batch size", "above 1 the gradient is mostly noise"),
    "momentum": Limit(0.99, 0, 0.95, "", "momentum", "it averages over 1 / (1 - momentum) steps"),
    "amplification": Limit(40, 0.5, 12, "", "step over lr x gradient", "momentum piles up steps by so much"),
    "leftover": Limit(1, 0, 0, "", "a gradient was there when the backward pass began", "zero_grad leaves none"),
    "fluctuation_low": Limit(
        0.03,
        0.2,
        2,
        "",
        "fluctuation of batch losses over that of independent batches",
        "30 times less than chance allows",
    ),
    "fluctuation": Limit(
        6,
        0.2,
        2,
        "",
        "fluctuation of batch losses over that of independent batches",
        "batches differ from one another more than samples do",
    ),
    "between": Limit(6, 0, 3, "", "variance of batch means over that of independent batches", "1 = shuffled"),
    "input_small": Limit(
        1e-3, 0.05, 3, "", "root mean square of the inputs", "biases of a first layer are some hundredths at the start"
    ),
    "input_rms": Limit(5, 0.05, 3, "", "root mean square of the inputs", "initialisations assume inputs of about 1"),
    "input_ratio": Limit(
        20, 1, 10, "", "largest scale of a feature over the median one", "one learning rate cannot serve both"
    ),
    "input_tail": Limit(8, 1, 4, "", "longest sample over the median one", "such samples have gradients of their own"),
    "target_scale": Limit(10, 0, 5, "", "median size of the targets", "an output layer starts at about 1"),
    "level": Limit(
        0.93, 0, 0.9, "of chance", "loss over that of an answer that ignores the input", "1 = nothing learned"
    ),
    "left_over": Limit(
        0.25,
        0,
        0.25,
        "of chance",
        "loss that is left after a hundred steps",
        "runs that get along have less, as a rule",
    ),
    "wanting": Limit(
        0.1,
        0,
        0.1,
        "of chance",
        "loss that is left in the end",
        "beside a fact that no right program shows: without it, less would be",
    ),
    "wanting_values": Limit(
        0.2,
        0,
        0.2,
        "of chance",
        "loss that is left in the end",
        "a fifth of the spread of real targets may be their noise",
    ),
    "wanting_texts": Limit(
        0.6, 0, 0.6, "of chance", "loss that is left in the end", "most of a text may be beyond what anybody could know"
    ),
    "valid_right": Limit(
        0.97, 0, 0.97, "", "share of right answers in validation", "little is left that could be better"
    ),
    "pace": Limit(
        1.6, 1.6, _inf, "", "how far ln(loss) falls in as many steps as the run has had", "0.7 = it halves in that time"
    ),
    "level0": Limit(
        3,
        0.3,
        2,
        "of chance",
        "first loss over that of an answer that ignores the input",
        "a network that knows nothing should say so",
    ),
    "row_sum_error": Limit(
        1e-3,
        0.1,
        _inf,
        "",
        "distance of the rows of the loss's input from adding up to 1",
        "scores add up to 1 only behind a softmax",
    ),
    "broadcast": Limit(
        1.5,
        1,
        1,
        "",
        "elements of the loss over those of its inputs",
        "a loss that compares every output with every target",
    ),
    "dead": Limit(
        0.97, 0, 0.5, "", "units of a layer that answer to no sample", "they get no gradient and never come back"
    ),
    "dead0": Limit(
        0.6, 0, 0.3, "", "units that answer to no sample, at the first step", "a fresh layer has almost none"
    ),
    "lost_weights": Limit(
        0.5, 0, 0.5, "", "share of all weights that do not learn", "the others make up for a small layer, mostly"
    ),
    "few_weights": Limit(
        0.15, 0, 0.15, "", "share of all weights that do not learn", "the rest has to show that it cannot do without"
    ),
    "cut_weights": Limit(
        0.5, 0, 0.5, "", "share of all weights that no gradient reaches", "nobody cuts half of a network on purpose"
    ),
    "vanishing": Limit(
        1e-3,
        0.01,
        1,
        "",
        "smallest over largest gradient of a weight",
        "the earliest layers learn a thousand times slower",
    ),
    "output_spread": Limit(
        1e-3,
        0.01,
        3,
        "",
        "spread of the outputs over samples, at the first step",
        "the output does not depend on the input",
    ),
    "output_flat": Limit(
        1e-4, 1e-3, 3, "", "spread of the outputs over samples, at the first step", "four digits are the same for all"
    ),
    "output_none": Limit(
        1e-5, 1e-3, 3, "", "spread of the outputs over samples, at the first step", "little more than rounding"
    ),
    "weight_scale": Limit(
        0.4, 0.4, 5, "", "length of the first weights over that of torch's default", "signals shrink at every layer"
    ),
    "attention_logit": Limit(
        20, 0, 10, "", "largest scaled product of a query and a key, first step", "exp(20) leaves room for one key only"
    ),
    "attention_entropy": Limit(0.2, 0.2, _inf, "nats", "entropy of the attention weights, first step", "1.2 keys"),
    "attention_share": Limit(
        0.4, 0.6, 1, "", "entropy of the attention weights over the largest possible, first step", "1 = all keys alike"
    ),
    "input_target": Limit(0.9999, 0, 0.9999, "", "largest correlation of a feature with the target", "1 = the same"),
    "input_answers": Limit(0.998, 0, 0.99, "", "correlation of a feature with yes-or-no targets", "two values"),
    "dropout": Limit(0.65, 0, 0.5, "", "probability of dropping a unit", "two of three units are noise"),
    "dropout_most": Limit(
        0.95,
        0,
        0.5,
        "",
        "probability of dropping a unit",
        "the noise has p / (1 - p) times the variance of the signal: 19",
    ),
    "class_odds": Limit(
        20, 1, 12, "to 1", "commonest class against one of the others", "a batch has hardly one sample of such a class"
    ),
    "rate_total": Limit(
        30,
        60,
        _inf,
        "steps",
        "all steps of an exponential schedule, in steps at the highest rate",
        "nothing is learned from scratch in so few",
    ),
    "eps_steps": Limit(
        0.05,
        0.15,
        1,
        "",
        "Adam's step per parameter over lr",
        "0.3 is usual: a sixth of the rate that was set",
    ),
    "steps_left": Limit(
        10,
        20,
        _inf,
        "steps",
        "all steps to come, in steps at the highest rate",
        "where much is left, they will not do it",
    ),
    "valid_left": Limit(
        0.9,
        0,
        0.9,
        "",
        "validation loss over its first value",
        "a network that learns what holds elsewhere gets better there",
    ),
    "train_left": Limit(
        0.6,
        0.6,
        1,
        "",
        "training loss over what it was at the first validation",
        "so much has been learned in the meantime",
    ),
    "valid_rise": Limit(
        1.15, 1, 1.15, "", "validation loss over its lowest value", "more than from one look to the next"
    ),
    "wrong_rank": Limit(
        0.33, 0, 0.3, "", "place of the label among the scores of wrong answers: 0 = next, 1 = last", "0.5 = anywhere"
    ),
    "better_elsewhere": Limit(
        0.15,
        -1,
        0.1,
        "",
        "right answers that training has less than validation, as a share",
        "without dropout and augmentation training is the easier of the two",
    ),
    "easier_elsewhere": Limit(
        0.7,
        0.75,
        _inf,
        "",
        "validation loss over that of training",
        "without dropout and augmentation training is the easier of the two",
    ),
    "flipped": Limit(
        0.3,
        0,
        0.3,
        "",
        "share of labels that have nothing to do with their samples",
        "networks learn in spite of a third",
    ),
    "looks_ahead": Limit(0.01, 0, 1e-4, "", "how far answers move when later tokens are exchanged", "rounding is left"),
    "mixed": Limit(1e-3, 0, 1e-4, "", "how far answers move when other samples are exchanged", "rounding is left"),
    "label_top_share": Limit(0.9, 0, 0.8, "", "share of the commonest label", "always giving it is right so often"),
}


def limit(name: str) -> float:
    return LIMITS[name].value
