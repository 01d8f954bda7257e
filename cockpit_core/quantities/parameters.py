from __future__ import annotations

from cockpit_core.quantities.base import Quantity


class Parameters(Quantity):
    """Where is the network? The parameters ``theta_t`` themselves, stored like histograms: heavy, only on request.

    ``run.data.parameters(step)`` gives them back. Keep the schedule sparse: each record holds the whole network.
    """

    needs = ("parameters",)
    kind = "parameters"
    description = "The parameters themselves; only on request."
