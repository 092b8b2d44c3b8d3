"""The columns of the record, one row a turn, and the version of their meaning (docs/watch.md says what is recorded)."""

from dataclasses import dataclass

import pyarrow as pa

#: Of the columns and of their meaning; it grows when a column comes, changes or goes.
VERSION = 5
#: Keys of a file's metadata: the version, and the settings of the run as JSON (`tables.stated`).
VERSION_KEY, SETTINGS_KEY = b"rllib_arpo.record.version", b"rllib_arpo.record.settings"


@dataclass(frozen=True, slots=True)
class Column:
    """A column and its meaning in words."""

    name: str
    type: pa.DataType
    doc: str
    nullable: bool = False


def _always(name: str, kind: pa.DataType, doc: str) -> Column:
    """A column that is never null."""
    return Column(name, kind, doc)


def _maybe(name: str, kind: pa.DataType, doc: str) -> Column:
    """A column whose words, or those of a column above it, say when it is null."""
    return Column(name, kind, doc, nullable=True)


_TEXT, _INT, _FLOAT, _BOOL = pa.string(), pa.int32(), pa.float64(), pa.bool_()
_INTS, _FLOATS, _TEXTS = pa.list_(pa.int32()), pa.list_(pa.float32()), pa.list_(pa.string())
#: Values of the column "purpose": of training, of an evaluation of the run, of the update that ended a run, and of the
#: commands `evaluate` and `entropy`.
TRAINING, EVALUATION, FAILED, BENCHMARK = "training", "evaluation", "failed", "benchmark"

QUESTION = (
    _always("purpose", _TEXT, '"training", "evaluation", "failed" (it ended the run) or "benchmark" (of a command)'),
    _always("iteration", _INT, "the update for which it was sampled, from 1; of other purposes: the updates before it"),
    _always("number", pa.int64(), "of the question in the order of its task"),
    _always("question_id", _TEXT, "as the environment names it"),
    _always("question_seconds", _FLOAT, "from the begin of the environment's reset to its last ending"),
    _always("trained", _BOOL, "whether the update got it; false in an evaluation"),
    _maybe("prompt", _TEXT, "what the model read first; null, as all that is decoded: the model has no tokenizer"),
    _always("prompt_tokens", _INT, "of the prompt"),
    _maybe("prompt_ids", _INTS, "the prompt's tokens; null but for the question's first row"),
)
TRAJECTORY = (
    _always("agent_id", _TEXT, '"0", "1", ... begin at the prompt; the first fork of "0" is "0.0"'),
    _maybe("parent", _TEXT, "the trajectory from which it was forked; null: it begins at the prompt"),
    _always("inherited_turns", _INT, "turns of the parent's path above the fork"),
    _always("topped_up", _BOOL, "whether it filled up the budget that forks had left"),
    _always("stop_reason", _TEXT, "why it ended"),
    _always("counts", _BOOL, "whether it is in the group mean and in the loss; otherwise it is masked"),
    _always("reward", _FLOAT, "the sum of the rewards along its path, without the overlong penalty"),
    _always("accuracy", _FLOAT, "in [0, 1]"),
    _always("format_valid", _BOOL, "whether its whole path keeps to the format"),
    _maybe("advantage", _FLOAT, "A, with the overlong penalty; null unless the trajectory was trained and counts"),
)
TURN = (
    _maybe("turn", _INT, "0, 1, ... among its trajectory's own turns; null, as all below: the trajectory has none"),
    _maybe("depth", _INT, "turns of the path above it"),
    _maybe("text", _TEXT, "what the model wrote, decoded, special tokens included"),
    _maybe("token_ids", _INTS, "as sampled"),
    _maybe("token_ends", _INTS, "where each token ends in `text`, in characters; null: the tokenizer cannot say"),
    _maybe("log_probs", _FLOATS, "of each token under the policy that sampled it, at the sampling temperature"),
    _maybe("entropies", _FLOATS, 'nats, of the first k tokens, or of all with `record_entropies="all"`'),
    _maybe("weight_versions", _INTS, "of the weights that sampled each token"),
    _maybe("turn_reward", _FLOAT, "what the environment paid for the turn"),
    _maybe("started_s", _FLOAT, "seconds from the begin of the question to the request; null: not measured"),
    _maybe("generated_s", _FLOAT, "to the last token; null: not measured"),
    _maybe("answered_s", _FLOAT, "to the environment's answer; null: not measured, or the turn was cut off before"),
)
CALL = (
    _maybe("tool", _TEXT, "the tool that the turn called; null, as the next three: it called none"),
    _maybe("tool_input", _TEXT, "the argument; of a function call, JSON"),
    _maybe("tool_status", _TEXT, '"ok", "error" or "timeout"'),
    _maybe("tool_seconds", _FLOAT, "wall time of the call"),
    _maybe("tool_output", _TEXT, "what the model read next, decoded; null: nothing"),
    _maybe("tool_output_tokens", _INT, "of it"),
    _maybe("tool_output_ids", _INTS, "its tokens; null: nothing"),
    _maybe("new_context", _BOOL, "whether this is all that the model read next, in place of all before"),
)
NODE = (
    _maybe("after_tool", _TEXT, 'the tool whose response precedes the turn ("": not named); null: the prompt does'),
    _maybe("level", _FLOAT, "the entropy of the first k tokens, normalised; null, as the next five: not examined here"),
    _maybe("delta", _FLOAT, "dH, the rise of the level against the baseline"),
    _maybe("probability", _FLOAT, "P; null: the rule has none, or nothing was decided"),
    _maybe("eligible", _BOOL, "whether the node was decided while budget remained"),
    _maybe("budget", _INT, "forks that the question had left at the decision"),
    _maybe("children", _INT, "trajectories that were forked at the node"),
)
ADVANTAGES = (
    _maybe("leaves", _INT, "trajectories that pass the turn and count; null, as the next four: it was not trained"),
    _maybe("weight", _FLOAT, "W, the sum of their weights, before the minibatch's denominator"),
    _maybe("soft_positive", _FLOAT, "A_pos of soft attribution, the sum of w max(A, 0)"),
    _maybe("soft_negative", _FLOAT, "A_neg of soft attribution, the sum of w min(A, 0)"),
    _maybe("hard_advantage", _FLOAT, "what hard attribution gives the turn: the mean of their advantages; null: none"),
)
ANSWER = (
    _maybe("task", _TEXT, "the name of the task; null, as all below: not of `rllib-arpo evaluate` or `entropy`"),
    _maybe("model", _TEXT, "as it was named; a folder with its absolute path"),
    _maybe("style", _TEXT, '"tools" or "direct"'),
    _maybe("commit", _TEXT, "of the code that asked the question; null: not known"),
    _maybe("question", _TEXT, "the question alone, without instructions and examples"),
    _maybe("answers", _TEXTS, "those that are right"),
    _maybe("ability", _TEXT, 'the kind of the question, such as "math" or "qa"'),
    _maybe("sampling_seed", pa.int64(), "of the trajectory's first turn; null: decoded greedily"),
    _maybe("answer", _TEXT, "the trajectory's answer; null: it gave none"),
    _maybe("exact_match", _FLOAT, 'of "qa": equality of normalised texts with a right answer; of others: accuracy 1'),
    _maybe("f1", _FLOAT, 'the best token F1 over the right answers; null but for "qa"'),
)
#: The columns in their order, below the headings of the documentation.
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
