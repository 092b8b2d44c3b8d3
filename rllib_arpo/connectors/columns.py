"""Names of the columns that the learner connectors pass on and that the RLModule and the loss read.

Per question (lists with one entry per question, in the order of the episodes): `TREES`, `LEAF_ADVANTAGES`,
`LEAF_WEIGHTS`, `NODE_WEIGHTS`. Per token of a packed pass ([T]): the others. See `core/packing.py` for the layout.
"""

TREES = "trees"
LAYOUTS = "layouts"
LEAF_ADVANTAGES = "leaf_advantages"
LEAF_WEIGHTS = "leaf_weights"
NODE_ATTRIBUTIONS = "node_attributions"
PACKED_TREES = "packed_trees"

TOKEN_IDS = "token_ids"
POSITION_IDS = "position_ids"
PARENT = "parent"
END = "end"
LOSS_MASK = "loss_mask"
BEHAVIOR_LOG_PROBS = "behavior_log_probs"
A_POS = "a_pos"
A_NEG = "a_neg"
WEIGHT = "weight"

#: What `LLMRLModule.forward_train` returns, [K] each, one entry per loss token of the pass, in packed order.
LOG_PROBS = "log_probs"
ENTROPY = "entropy"
