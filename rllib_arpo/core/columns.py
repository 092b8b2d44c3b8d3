"""Names of the columns that the learner connector passes on and that the RLModule and the loss read.

Per question (lists with one entry per question, in the order of the episodes): `LEAF_ADVANTAGES` and `PACKED_TREES`.
Per token of a packed pass ([T]): `TOKEN_IDS` to `LOSS_MASK`. Per loss token of a packed pass ([K]):
`BEHAVIOR_LOG_PROBS` to `WEIGHT`. The rest hold one value for the batch or the minibatch. `core/packing.py` has the
layout.
"""

LEAF_ADVANTAGES = "leaf_advantages"
PACKED_TREES = "packed_trees"
#: The number by which the baseline divides the rewards of the whole batch: one float, the same on every learner.
REWARD_SCALE = "reward_scale"

TOKEN_IDS = "token_ids"
POSITION_IDS = "position_ids"
PARENT = "parent"
END = "end"
LOSS_MASK = "loss_mask"

BEHAVIOR_LOG_PROBS = "behavior_log_probs"
BEHAVIOR_ENTROPIES = "behavior_entropies"
OLD_LOG_PROBS = "old_log_probs"
REFERENCE_LOG_PROBS = "reference_log_probs"
A_POS = "a_pos"
A_NEG = "a_neg"
WEIGHT = "weight"

#: Outputs of `LLMRLModule.forward_train`, [K] each, one entry per loss token of the pass, in packed order.
LOG_PROBS = "log_probs"
ENTROPY = "entropy"

#: The scalar by which the learner divides the minibatch's loss, the same on every learner.
DENOMINATOR = "denominator"
#: The `MeanAndStd` of the minibatch's entropies, the same on every learner; None if no advantage depends on entropies.
ENTROPY_STATISTICS = "entropy_statistics"

#: Key of `shared_data`: the `MeanAndStd` of the rewards of the whole batch.
REWARD_STATISTICS = "reward_statistics"
