"""Real data as numpy arrays: from the user's folder, else from archives that ordinary package managers fetch.

Nothing here imports torch, torchvision or pandas, and nothing is fetched at import.
"""

from __future__ import annotations

from cockpit_core.datasets.fetch import DataMissing, find_cache
from cockpit_core.datasets.images import Images, cifar10, cifar100, fashion_mnist, mnist, svhn
from cockpit_core.datasets.text import moby_dick

__all__ = [
    "DataMissing",
    "Images",
    "cifar10",
    "cifar100",
    "fashion_mnist",
    "find_cache",
    "mnist",
    "moby_dick",
    "svhn",
]
