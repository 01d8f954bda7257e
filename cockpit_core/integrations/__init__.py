"""One line for users of a training library; each module imports its library only when it is imported itself.

``from cockpit_core.integrations.lightning import CockpitCallback``, ``from cockpit_core.integrations.huggingface import
CockpitCallback``. With Accelerate the loop is the user's own: call ``cockpit_core.track`` after ``prepare``.
"""
