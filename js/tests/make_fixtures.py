"""Small binary Batches and Histograms for the tests and the preview page, from the synthetic runs of the Python tests.

``python js/tests/make_fixtures.py`` from the root of the repository, with the package installed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from cockpit_core.events.batch import encode_batch  # noqa: E402
from cockpit_core.events.data import load  # noqa: E402
from tests.synthetic import write_run  # noqa: E402

FOLDER = Path(__file__).parent / "fixtures"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        healthy = Path(folder) / "lenet-sgd"
        write_run(healthy, steps=120, layers=6, seed=1)
        sick = Path(folder) / "lenet-sigmoid"
        write_run(sick, steps=80, layers=6, seed=2, sick_layer="conv1.weight", finished=False)
        for path in (healthy, sick):
            data = load(path)
            for name, content in {
                "whole": encode_batch(data, run=path.name, histograms=3),
                "network": encode_batch(data, run=path.name, layers=[]),
                "thinned": encode_batch(data, run=path.name, layers=[], max_points=20),
                "tail": encode_batch(data, 60, run=path.name, layers=[]),
            }.items():
                (FOLDER / f"{path.name}.{name}.bin").write_bytes(content)


if __name__ == "__main__":
    main()
