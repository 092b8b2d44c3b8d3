"""Declares the options of `ARPOConfig.reporting`; RLlib's own keywords are not here."""

from rllib_arpo.options.option import Reader, option
from rllib_arpo.options.rules import PROBABILITY, SWITCH, optional

REPORTING = {
    "show_progress": option(True, "prints how far a rollout is, a line every 15 seconds.", SWITCH, Reader.ENV_RUNNER),
    "record_share": option(
        0.05,
        "share of training questions whose trees are recorded (docs/watch.md), beside all evaluation questions; None: "
        "only questions that end the run.",
        optional(PROBABILITY),
        Reader.TRAINING,
    ),
}
