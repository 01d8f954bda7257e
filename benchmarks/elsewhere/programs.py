"""The list of programs. The halves were decided before anything was run: A may be studied, B is only counted;
C to M were written later, by people who had not seen the rules."""

from __future__ import annotations

from importlib import import_module

from .harness import Program

HALVES = {
    "A": ["vit", "unet", "dates", "gaussian", "pairs", "graph", "ratings"],
    "B": ["chars", "sums", "vae", "tones", "boxes", "physics", "tags"],
    "C": ["table", "photos", "friedman", "resnet", "intents", "energy", "names", "denoise", "biopsy", "addresses"],
    "D": ["mixer", "topics", "prices", "motion", "sharpen"],
    "E": ["lenet", "churn", "reviews", "rentals", "tides", "student", "triplets", "maze"],
    "F": ["tabular", "vgg", "housing", "docstrings", "minigpt", "squeeze", "machines", "headlines"],
    "G": ["spirals", "shapes", "bnresnet", "waves", "signals", "counting", "copytext", "digitsvae"],
    "H": ["glyphs", "tokens", "sensors", "wine", "restore", "gnresnet", "nanogpt", "yacht"],
    "I": [
        "loans",
        "signs",
        "river",
        "galaxies",
        "orders",
        "energy_label",
        "road_signs",
        "car_range",
        "walks",
        "weekdays",
    ],
    "J": ["denoiser", "citations", "segments", "reverse", "embedder"],
    "K": ["moons", "gestures", "faces", "heat"],
    "L": ["plates", "ecg", "bikes", "poems"],
    "M": ["wells", "clothes", "traffic", "verbs"],
}


def programs(half: str) -> list[Program]:
    """The programs of one half."""
    found = []
    for name in HALVES[half]:
        program = import_module(f".{name}", __package__).PROGRAM
        assert program.half == half and program.name == name
        found.append(program)
    return found
