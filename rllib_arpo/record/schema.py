"""The columns of the record, which has a row for each turn, and their version (docs/watch.md explains the record)."""

from dataclasses import dataclass

import pyarrow as pa

#: The version of the columns and their meaning; it grows when a column comes, changes or goes.
VERSION = 6
#: Keys of a file's metadata: the version, and the settings of the run as JSON (`tables.stated`).
VERSION_KEY, SETTINGS_KEY = b"rllib_arpo.record.version", b"rllib_arpo.record.settings"


@dataclass(frozen=True, slots=True)
class Column:
    """A column and its meaning."""

    name: str
    type: pa.DataType
    doc: str
    nullable: bool = False


def _always(name: str, kind: pa.DataType, doc: str) -> Column:
    """A column that is never null."""
    return Column(name, kind, doc)


def _maybe(name: str, kind: pa.DataType, doc: str) -> Column:
    """A column that may be null; its words, or an earlier column's, say when."""
    return Column(name, kind, doc, nullable=True)


_TEXT, _INT, _FLOAT, _BOOL = pa.string(), pa.int32(), pa.float64(), pa.bool_()
_INTS, _FLOATS, _TEXTS = pa.list_(pa.int32()), pa.list_(pa.float32()), pa.list_(pa.string())
#: Values of the column "purpose": training, an evaluation of the run, the update that ended the run, and the commands
#: `evaluate` and `entropy`.
TRAINING, EVALUATION, FAILED, BENCHMARK = "training", "evaluation", "failed", "benchmark"

QUESTION = (
    _always("purpose", _TEXT, '"training", "evaluation", "failed" (it ended the run) or "benchmark" (of a command)'),
    _always("iteration", _INT, "training: the update that it was sampled for, from 1; otherwise the updates before it"),
    _always("number", pa.int64(), "the question's place in the order in which its questions are asked"),
    _always("question_id", _TEXT, "the environment's name for it"),
    _always("question_seconds", _FLOAT, "from the start of the environment's reset to the last trajectory's end"),
    _always("trained", _BOOL, "whether the update trained on it; false in an evaluation"),
    _maybe("prompt", _TEXT, "the first text that the model read; null, like all decoded texts: it has no tokenizer"),
    _always("prompt_tokens", _INT, "tokens of the prompt"),
    _maybe("prompt_ids", _INTS, "the prompt's tokens, in the question's first row; null in its other rows"),
)
TRAJECTORY = (
    _always("agent_id", _TEXT, '"0", "1", ... begin at the prompt; the first fork of "0" is "0.0"'),
    _maybe("parent", _TEXT, "the trajectory from which it was forked; null: it begins at the prompt"),
    _always("inherited_turns", _INT, "turns of the parent's path above the fork"),
    _always("topped_up", _BOOL, "whether it used budget that forks had left"),
    _always("stop_reason", _TEXT, "why it ended"),
    _always("counts", _BOOL, "whether it is in the group mean and in the loss; otherwise it is masked"),
    _always("reward", _FLOAT, "the sum of the rewards along its path, without the overlong penalty"),
    _always("accuracy", _FLOAT, "in [0, 1]"),
    _always("format_valid", _BOOL, "whether its whole path has the right format"),
    _maybe("advantage", _FLOAT, "A, with the overlong penalty; null unless the trajectory was trained and counts"),
)
TURN = (
    _maybe("turn", _INT, "0, 1, ... among its trajectory's own turns; null, like all below: the trajectory has none"),
    _maybe("depth", _INT, "turns before it on its path"),
    _maybe("text", _TEXT, "the model's text, decoded, with special tokens"),
    _maybe("token_ids", _INTS, "the sampled tokens"),
    _maybe("token_ends", _INTS, "where each token ends in `text`, in characters; null: the tokenizer cannot say"),
    _maybe("log_probs", _FLOATS, "each token's under the policy that sampled it, at the sampling temperature"),
    _maybe("entropies", _FLOATS, 'nats, of the first k tokens, or of all tokens with `record_entropies="all"`'),
    _maybe("weight_versions", _INTS, "for each token the version of the weights that sampled it"),
    _maybe("turn_reward", _FLOAT, "the environment's reward for the turn"),
    _maybe("started_s", _FLOAT, "seconds from the start of the question to the request; null: not measured"),
    _maybe("generated_s", _FLOAT, "seconds to the last token; null: not measured"),
    _maybe("answered_s", _FLOAT, "seconds to the environment's answer; null: not measured, or the turn was cut off"),
)
CALL = (
    _maybe("tool", _TEXT, "the tool that the turn called; null, like the next three: it called none"),
    _maybe("tool_input", _TEXT, "the argument, for a function call as JSON"),
    _maybe("tool_status", _TEXT, '"ok", "error" or "timeout"'),
    _maybe("tool_seconds", _FLOAT, "wall time of the call"),
    _maybe("tool_output", _TEXT, "the text that the model read next, decoded; null: none"),
    _maybe("tool_output_tokens", _INT, "its number of tokens"),
    _maybe("tool_output_ids", _INTS, "its tokens; null: none"),
    _maybe("new_context", _BOOL, "whether this text replaced everything that the model had read before"),
)
NODE = (
    _maybe("after_tool", _TEXT, 'the tool whose response precedes the turn ("": unnamed); null: the prompt does'),
    _maybe("level", _FLOAT, "normalised entropy of the first k tokens; null, like the next five: not examined here"),
    _maybe("delta", _FLOAT, "dH, the rise of the level above the baseline"),
    _maybe("probability", _FLOAT, "P; null: the rule has none, or nothing was decided"),
    _maybe("eligible", _BOOL, "whether the node was decided while budget remained"),
    _maybe("budget", _INT, "forks that the question had left at the decision"),
    _maybe("children", _INT, "trajectories that were forked at the node"),
)
ADVANTAGES = (
    _maybe("leaves", _INT, "trajectories that pass the turn and count; null, like the next four: it was not trained"),
    _maybe("weight", _FLOAT, "W, the sum of their weights, before the division by the minibatch's denominator"),
    _maybe("soft_positive", _FLOAT, "A_pos of soft attribution, the sum of w max(A, 0)"),
    _maybe("soft_negative", _FLOAT, "A_neg of soft attribution, the sum of w min(A, 0)"),
    _maybe("hard_advantage", _FLOAT, "the mean of their advantages, which hard attribution gives the turn; null: none"),
)
ANSWER = (
    _maybe("task", _TEXT, "the name of the task; null, like all below: not from `rllib-arpo evaluate` or `entropy`"),
    _maybe("model", _TEXT, "the user's name for the model; a folder has its absolute path"),
    _maybe("commit", _TEXT, "the commit of the code that asked the question; null: not known"),
    _maybe("question", _TEXT, "the question without instructions and examples"),
    _maybe("answers", _TEXTS, "the right answers"),
    _maybe("ability", _TEXT, 'the kind of question, such as "math" or "qa"'),
    _maybe("answer", _TEXT, "the trajectory's answer; null: it gave none"),
    _maybe("exact_match", _FLOAT, 'for "qa" with right answers: normalised texts equal one; otherwise: accuracy is 1'),
    _maybe("f1", _FLOAT, 'the best token F1 over the right answers; null: not "qa", or without right answers'),
)
#: Heading in the documentation -> its columns, in their order.
GROUPS = {
    "The question": QUESTION,
    "The trajectory": TRAJECTORY,
    "The turn": TURN,
    "The tool that it called": CALL,
    "The node before the turn": NODE,
    "The advantages of its tokens": ADVANTAGES,
    "The answer to a benchmark": ANSWER,
}
SCHEMA = pa.schema(
    [pa.field(column.name, column.type, column.nullable) for columns in GROUPS.values() for column in columns]
)
