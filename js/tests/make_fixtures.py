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
        write_run(healthy, steps=60, layers=4, seed=1)
        sick = Path(folder) / "lenet-sigmoid"
        write_run(sick, steps=40, layers=4, seed=2, sick_layer="conv1.weight", finished=False)
        everything = Path(folder) / "everything"
        write_run(everything, steps=12, layers=2, seed=3, instruments=True)
        for path in (healthy, sick, everything):
            data = load(path)
            (FOLDER / f"{path.name}.bin").write_bytes(encode_batch(data, run=path.name, histograms=2))
        thinned = encode_batch(load(healthy), run="lenet-sgd", layers=[], max_points=20)
        (FOLDER / "lenet-sgd.thinned.bin").write_bytes(thinned)


if __name__ == "__main__":
    main()
