"""Extensions of BackPACK as statistics: what a quantity may name in ``needs`` beside words.

``declared`` says which ones may be asked for, ``function_losses`` finds the loss module behind a loss that was a function,
``watching`` looks whether BackPACK's rules hold for this network, ``running`` does the pass. BackPACK is imported by the
first quantity that names an extension, never by us before that.
"""

from cockpit_core.engine.extensions.declared import check_extensions, find_extensions
from cockpit_core.engine.extensions.results import BackpackValues

__all__ = ["BackpackValues", "check_extensions", "find_extensions"]
