"""The slow, obvious twin of the learner: every trajectory on its own, no packing, no passes, plain transformers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from rllib_arpo.core.tree import QuestionTree, Trajectory, context_after
from tests.helpers.trees import random_tree


def random_question(seed: int, name: str, **kwargs) -> QuestionTree:
    """A random tree whose engine log-probs lie on both sides of a random model's, with the entropies of all tokens.

    Every trajectory has a turn of its own: an episode stores the reward with it.
    """
    rng, rng_of_entropies = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    tree = random_tree(rng, zero_turn_probability=0.0, **kwargs)

    def with_outputs(trajectory: Trajectory) -> Trajectory:
        turns = tuple(
            replace(
                turn,
                log_probs=rng.uniform(-8.0, -3.0, len(turn.token_ids)).astype(np.float32),
                entropies=rng_of_entropies.exponential(size=len(turn.token_ids)).astype(np.float32),
            )
            for turn in trajectory.turns
        )
        return replace(trajectory, turns=turns)

    return replace(tree, question_id=name, trajectories=tuple(map(with_outputs, tree.trajectories)))


def with_nan_log_probs(tree: QuestionTree) -> QuestionTree:
    """The engine's log-probs of the first trajectory's own tokens become NaN."""
    [first, *others] = tree.trajectories
    turns = tuple(replace(turn, log_probs=np.full(len(turn.token_ids), np.nan, np.float32)) for turn in first.turns)
    return replace(tree, trajectories=(replace(first, turns=turns), *others))


def load(folder: str, dtype: torch.dtype = torch.float64):
    """The model as transformers computes it; its eager attention would take the softmax in fp32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()


@dataclass(frozen=True)
class Scores:
    """Of the K generated tokens on one path: `log_probs`, `entropies` [K], and the turn that generated each."""

    log_probs: Tensor
    entropies: Tensor
    turns: list[int]


def score(model, tree: QuestionTree, agent_id: str, temperature: float = 1.0) -> Scores:
    """One plain forward pass over prompt, turns and tool responses of one trajectory; of conversations, one a turn."""
    if any(turn.new_context for turn in tree.path(agent_id)):
        return _score_turn_by_turn(model, tree, agent_id, temperature)
    tokens, generated, turns = list(tree.prompt), [], []
    for turn in tree.path(agent_id):
        generated += range(len(tokens), len(tokens) + len(turn.token_ids))
        turns += [id(turn)] * len(turn.token_ids)
        tokens += [*turn.token_ids, *turn.observation]
    tokens, generated = torch.tensor(np.array(tokens), dtype=torch.long), torch.tensor(generated, dtype=torch.long)
    log_probs = (model(tokens[None]).logits[0] / temperature).log_softmax(-1)[generated - 1]
    entropies = -(log_probs.exp() * log_probs).sum(-1)
    return Scores(log_probs[torch.arange(len(generated)), tokens[generated]], entropies, turns)


def _score_turn_by_turn(model, tree: QuestionTree, agent_id: str, temperature: float) -> Scores:
    log_probs, turns, path = [torch.zeros(0, model.config.vocab_size, dtype=model.dtype)], [], tree.path(agent_id)
    generated = torch.tensor(np.concatenate([turn.token_ids for turn in path]), dtype=torch.long)
    for i, turn in enumerate(path):
        tokens = torch.tensor(np.concatenate([context_after(tree.prompt, path[:i]), turn.token_ids]), dtype=torch.long)
        begin, end = len(tokens) - len(turn.token_ids), len(tokens)
        log_probs.append((model(tokens[None]).logits[0, begin - 1 : end - 1] / temperature).log_softmax(-1))
        turns += [id(turn)] * len(turn.token_ids)
    of_vocabulary = torch.cat(log_probs)
    entropies = -(of_vocabulary.exp() * of_vocabulary).sum(-1)
    return Scores(of_vocabulary[torch.arange(len(generated)), generated], entropies, turns)


def counted(tree: QuestionTree) -> dict[str, float]:
    """agent id -> the return, of the trajectories that count."""
    returns = zip(tree.trajectories, tree.returns().tolist(), strict=True)
    return {t.agent_id: reward for t, reward in returns if t.counts}


def advantages(group: dict[str, float], normalize_std: bool = True) -> dict[str, float]:
    """agent id -> A, GRPO's, or Dr. GRPO's without the division."""
    rewards = np.array([*group.values()])
    std = rewards.std(ddof=1) if len(rewards) > 1 else 0.0
    scale = std + 1e-6 if normalize_std else 1.0
    return {leaf: (reward - rewards.mean()) / scale if std > 0 else 0.0 for leaf, reward in group.items()}


def tree_advantages(tree: QuestionTree) -> dict[str, float]:
    """agent id -> A, Tree-GRPO's: against the trajectories that descend from the same root, plus against all."""
    between = advantages(counted(tree))
    result = {}
    for leaf in between:
        relatives = {other: r for other, r in counted(tree).items() if other.split(".")[0] == leaf.split(".")[0]}
        result[leaf] = between[leaf] + advantages(relatives)[leaf]
    return result


def same_state_advantages(tree: QuestionTree, normalize_std: bool) -> dict[str, dict[int, float]]:
    """agent id -> of each turn A, GiGPO's: GRPO's, plus that of the rewards to go of all that read the same there."""
    between, to_go, states = advantages(counted(tree), normalize_std), {}, {}
    for leaf in between:
        path = tree.path(leaf)
        for depth, turn in enumerate(path):
            states[leaf, id(turn)] = state = (depth, *(path[depth - 1].observation.tolist() if depth else ()))
            to_go.setdefault(state, {})[leaf] = sum(later.reward for later in path[depth:])
    within = {state: advantages(of_leaves, normalize_std) for state, of_leaves in to_go.items()}
    result: dict[str, dict[int, float]] = {leaf: {} for leaf in between}
    for (leaf, turn), state in states.items():
        result[leaf][turn] = between[leaf] + within[state][leaf]
    return result


def batch_std(batch: Sequence[QuestionTree]) -> float:
    return float(np.std([r for tree in batch for r in counted(tree).values()], ddof=1))


def batch_advantages(tree: QuestionTree, batch: Sequence[QuestionTree]) -> dict[str, float]:
    """agent id -> A, REINFORCE++'s."""
    mean = np.mean([r for other in batch for r in counted(other).values()])
    return {leaf: (r - mean) / (batch_std(batch) + 1e-6) for leaf, r in counted(tree).items()}


def token_advantages(
    by_leaf: Mapping[str, float | Mapping[int, float]], attribution: str, scores: dict[str, Scores]
) -> dict[str, Tensor]:
    """agent id -> A_lt, [K]; hard: the mean over the leaves whose path has the same turn."""

    def at(leaf: str, turn: int) -> float:
        a = by_leaf[leaf]
        return a if isinstance(a, float) else a[turn]

    if attribution == "soft":
        return {
            leaf: torch.tensor([at(leaf, turn) for turn in scores[leaf].turns], dtype=torch.float64) for leaf in by_leaf
        }
    below: dict[int, list[float]] = {}
    for leaf in by_leaf:
        for turn in set(scores[leaf].turns):
            below.setdefault(turn, []).append(at(leaf, turn))
    return {
        leaf: torch.tensor([float(np.mean(below[turn])) for turn in scores[leaf].turns], dtype=torch.float64)
        for leaf in by_leaf
    }


def entropy_factors(trees: Sequence[QuestionTree], coeff: float) -> dict[int, Tensor]:
    """AEPO's factor of each token of each turn that a counted trajectory passes, by the turn's `id`."""
    turns = {id(turn): turn for tree in trees for name in counted(tree) for turn in tree.path(name)}
    each = {key: torch.tensor(turn.entropies, dtype=torch.float64) for key, turn in turns.items()}
    everything = torch.cat([*each.values(), torch.zeros(0)])
    if len(everything) < 2:
        return {key: torch.ones(len(entropies)) for key, entropies in each.items()}
    mean, std = everything.mean(), everything.std()
    return {key: (1 + coeff * (entropies - mean) / (std + 1e-6)).clamp(min=0) for key, entropies in each.items()}


def advantages_of(tree: QuestionTree, config, batch: Sequence[QuestionTree] | None) -> dict:
    """By leaf, and by the turn's `id` where they differ from turn to turn; arguments as in `loss`."""
    if batch is not None:
        return batch_advantages(tree, batch)
    if config.baseline == "tree":
        return tree_advantages(tree)
    if config.baseline == "same_state":
        return same_state_advantages(tree, config.normalize_std)
    return advantages(counted(tree), config.normalize_std)


def loss(
    model,
    trees: Sequence[QuestionTree],
    config,
    old: dict | None = None,
    reference: dict | None = None,
    batch: Sequence[QuestionTree] | None = None,
) -> Tensor:
    """Minus J of a minibatch, summed leaf by leaf and token by token as docs/design.md writes it.

    Args:
        old, reference: (question id, agent id) -> log-probs [K]; without `old` the ratio is 1, with its gradient.
        batch: all questions of the update, where the baseline is REINFORCE++'s; without it GRPO's is meant.
    """
    leaves = [(tree, name) for tree in trees for name in counted(tree)]
    lengths = {(tree.question_id, name): sum(len(turn.token_ids) for turn in tree.path(name)) for tree, name in leaves}
    factors = entropy_factors(trees, config.entropy_advantage_coeff) if config.entropy_advantage_coeff else {}
    total = 0.0
    for tree in trees:
        scores = {name: score(model, tree, name, config.temperature) for name in counted(tree)}
        by_leaf = advantages_of(tree, config, batch)
        for leaf, a in token_advantages(by_leaf, config.attribution, scores).items():
            key, current = (tree.question_id, leaf), scores[leaf]
            weight = {
                "token_mean": 1 / sum(lengths.values()),
                "sequence_mean": 1 / (len(leaves) * max(lengths[key], 1)),
                "constant": 1 / (len(leaves) * config.max_response_tokens),
            }[config.loss_aggregation]
            before = current.log_probs.detach() if old is None else old[key]
            if config.kl_in_reward:
                kl = before - reference[key]
                scale = 1.0 if batch is None else batch_std(batch) + 1e-6
                a = a - config.kl_coeff * kl.flip(0).cumsum(0).flip(0) / scale
            if factors:
                a = a * torch.cat([factors[id(turn)] for turn in tree.path(leaf)])
            ratio = (current.log_probs - before).exp()
            upper = 1 + config.clip_high
            clipped = ratio.clamp(1 - config.clip_low, upper)
            if config.keep_clipped_gradient:
                clipped = torch.where(ratio > upper, upper / ratio.detach() * ratio, clipped)
            term = torch.minimum(ratio * a, clipped * a)
            if config.dual_clip is not None:
                term = torch.where(a < 0, torch.maximum(term, config.dual_clip * a), term)
            if config.importance_cap is not None:
                engine = torch.tensor(np.concatenate([t.log_probs for t in tree.path(leaf)]))
                term = term * (before - engine).exp().clamp(max=config.importance_cap)
            term = term + config.entropy_coeff * current.entropies
            if config.kl_coeff > 0 and not config.kl_in_reward:
                difference = reference[key] - current.log_probs
                term = term - config.kl_coeff * (difference.exp() - difference - 1)
            total = total + weight * term.sum()
    return -total


@torch.no_grad()
def all_log_probs(model, trees: Sequence[QuestionTree], temperature: float) -> dict[tuple[str, str], Tensor]:
    return {
        (tree.question_id, name): score(model, tree, name, temperature).log_probs
        for tree in trees
        for name in counted(tree)
    }


def update(model, trees: Sequence[QuestionTree], config, reference: dict | None = None) -> list[dict[str, Tensor]]:
    """Trains `model` in place as `ARPOTorchLearner.update` should; returns each step's gradients before clipping.

    Args:
        reference: (question id, agent id) -> log-probs [K]; None: those of the model at the start.
    """
    old = all_log_probs(model, trees, config.temperature)
    reference = old if reference is None else reference
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(
        trained.values(), lr=config.lr, betas=config.adam_betas, weight_decay=config.weight_decay
    )
    gradients = []
    for _ in range(config.num_epochs):
        for first in range(0, len(trees), config.questions_per_minibatch):
            optimizer.zero_grad()
            minibatch = trees[first : first + config.questions_per_minibatch]
            loss(model, minibatch, config, old, reference).backward()
            gradients.append({name: p.grad.clone() for name, p in trained.items()})
            norm = torch.nn.utils.clip_grad_norm_(trained.values(), config.grad_clip)
            if norm > 0:  # With every token clipped Adam would go on by its momentum alone.
                optimizer.step()
    return gradients
