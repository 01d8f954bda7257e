"""Files out of npm's and Debian's archives, and the formats that old data sets come in. Nothing is unpacked to disk."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


def read_tar(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The contents of these members of a (compressed) tar archive."""
    with tarfile.open(path) as tar:
        return extract(tar, names, path)


def read_deb(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The same from a Debian package: an ``ar`` archive, whose member ``data.tar.*`` holds the files."""
    raw = path.read_bytes()
    if raw[:8] != b"!<arch>\n":
        raise ValueError(f"{path} is no Debian package")
    at = 8
    while at + 60 <= len(raw):
        name, size = raw[at : at + 16].decode("ascii", "replace").strip(), int(raw[at + 48 : at + 58])
        at += 60
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(raw[at : at + size])) as tar:
                return extract(tar, names, path)
        at += size + size % 2  # members begin at even places
    raise ValueError(f"{path} holds no data.tar")


def extract(tar: tarfile.TarFile, names: Iterable[str], path: Path) -> dict[str, bytes]:
    contents = {}
    for name in names:
        try:
            member = tar.extractfile(name)
        except KeyError:
            member = None
        if member is None:
            raise ValueError(f"{path} holds no {name}")
        contents[name] = member.read()
    return contents


def read_idx(raw: bytes) -> np.ndarray:
    """LeCun's IDX format: two zeros, a type (8 = bytes), the number of dimensions, their sizes, the values."""
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise ValueError("no IDX file of bytes")
    dims = raw[3]
    shape = tuple(int(size) for size in np.frombuffer(raw, ">i4", dims, 4))
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * dims)
    if values.size != int(np.prod(shape)):
        raise ValueError(f"an IDX file of shape {shape} with {values.size} values")
    return values.reshape(shape)


class ArraysOnly(pickle.Unpickler):
    """Pickles can run anything; those of CIFAR need nothing but arrays, lists, texts and dictionaries."""

    def find_class(self, module: str, name: str) -> Any:
        if (module.partition(".")[0], name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if module.startswith("numpy.") and name == "_reconstruct":
            return np.ndarray.__reduce__(np.empty(0))[0]  # wherever this version of numpy keeps it
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes into the old format
            return lambda text, encoding: text.encode("latin1")
        raise ValueError(f"a CIFAR file must hold arrays only, not {module}.{name}")


def read_pickle(raw: bytes) -> dict[bytes, Any]:
    """A batch of CIFAR as its authors store it, written by Python 2."""
    content = ArraysOnly(io.BytesIO(raw), encoding="bytes").load()
    if not isinstance(content, dict):
        raise ValueError("a CIFAR file holds a dictionary")
    return content


def hash_array(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
