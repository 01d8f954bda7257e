"""So many samples that a batch of a fraction would give the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence, number

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


FEW_STEPS, MANY = 50, 128  # of a whole training; samples of a batch
FALLING = 1.1  # the loss of a quarter of the run ago over that of now


class BatchTooLarge(Diagnosis):
    name = "batch_too_large"
    title = "the batch is larger than needed"
    severity = "advice"
    needs = ("NormTest",)
    hold, after, least = 6, 5, 4
    at_end = True
    confidence = 0.6
    explains = ("schedule_too_fast",)  # by epochs, which are a step or two

    def test(self, view: View) -> Found | None:
        short = view.finished and view.t < FEW_STEPS and view.batch >= MANY
        falls = view.improves or view.fall[0] > FALLING
        if short and not view.noise > 0.5 and view.level > 0.3 and falls:
            text = (
                f"The batch of {view.batch} is too large: the training was over after {view.t + 1} steps, while the loss was still "
                f"{number(100 * view.level)} % of that of a constant guess and fell."
            )
            remedy = (
                f"Use batches of about {max(16, view.batch // 8)}, which make eight times as many steps of the same data; or "
                "train longer."
            )
            return Found(
                text, remedy, [evidence("noise", view.noise), evidence("level", view.level)], severity="likely"
            )
        if not view.noise < 0.01 or view.batch < 256 or not view.n >= 20 or view.t < 50:
            return None
        enough = max(16, int(view.batch * view.noise * 10))
        text = (
            f"The batch of {view.batch} is larger than needed: its gradient has almost no noise "
            f"({number(100 * view.noise)} % of its length squared)."
        )
        remedy = f"A batch of about {enough} gives nearly the same steps, so that you can take more of them."
        return Found(text, remedy, [evidence("noise", view.noise)], alone=True)
