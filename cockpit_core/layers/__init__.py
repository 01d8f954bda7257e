"""Individual gradients layer by layer. Each file holds the rules of one layer type; importing it registers them."""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
