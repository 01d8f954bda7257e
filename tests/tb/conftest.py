"""TensorBoard's own imports warn (a sanitizer that it ships); ours must not, so only those are quiet."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensorboard.plugin_util
    import tensorboard.program  # noqa: F401
