"""Cold start: supervised fine-tuning on tool-use transcripts, before reinforcement learning.

    rllib-arpo cold-start --model Qwen/Qwen2.5-3B-Instruct --data transcripts.jsonl --output DIR

ARPO starts from a model that already calls tools now and then. `train` makes one from any causal LM with a chat
template; `examples` says what a row of the data is, `training` how much memory a model takes.
"""

from rllib_arpo.cold_start.training import ColdStartSettings, is_first_process, train

__all__ = ["ColdStartSettings", "is_first_process", "train"]
