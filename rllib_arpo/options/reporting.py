"""Declares the options of `ARPOConfig.reporting`; RLlib's own keywords are not here."""

from rllib_arpo.options.option import Reader, option
from rllib_arpo.options.rules import PROBABILITY, name_in, optional
from rllib_arpo.rollout.progress import INTERVALS_S, progress_mode

REPORTING = {
    # The process that makes the configuration decides this, since a remote env runner sees no terminal.
    "progress_bar": option(
        progress_mode,
        'how a rollout shows its progress: "bar", "lines" or "off"; default: a bar on a terminal, otherwise lines.',
        name_in(INTERVALS_S),
        Reader.ENV_RUNNER,
    ),
    "record_share": option(
        0.05,
        "share of training questions whose trees are recorded (docs/watch.md), beside all evaluation questions; None: "
        "only questions that end the run.",
        optional(PROBABILITY),
        Reader.TRAINING,
    ),
}
