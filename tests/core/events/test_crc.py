"""CRC-32C in C and in numpy."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pytest

from cockpit_core.events import crc


def test_check_value_of_the_standard() -> None:
    assert crc.crc32c_numpy(b"123456789") == 0xE3069283
    assert crc.crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("size", [*range(18), 255, 256, 257, 511, 512, 513, 1023, 4096, 70_001])
def test_numpy_agrees_with_c(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes()
    assert crc.crc32c_numpy(data) == google_crc32c.value(data)


def test_without_the_c_library_numpy_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = crc.masked_crc(b"payload" * 100)
    monkeypatch.setattr(crc, "_native", None)
    assert crc.masked_crc(b"payload" * 100) == expected


def test_windows_agree_with_single_checks() -> None:
    data = np.random.default_rng(0).integers(0, 256, 40, dtype=np.uint8).tobytes()
    starts = np.arange(33)
    expected = [crc.masked_crc(data[start : start + 8]) for start in starts]
    assert crc.masked_crc_windows(data, starts).tolist() == expected
