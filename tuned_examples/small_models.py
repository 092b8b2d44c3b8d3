"""Small Llamas that are made here and cold-started on the texts of a task. Each is made once.

ARPO starts from a model that keeps the format and calls tools, but does not know how to use their answers. So the last
stage tunes these models on transcripts of an imperfect demonstrator. They are then sure of every step except where they
have to choose.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rllib_arpo import cold_start
from rllib_arpo.cold_start import ColdStartSettings
from rllib_arpo.cold_start.examples import tokenize_transcript
from rllib_arpo.cold_start.transcripts import Transcript
from rllib_arpo.envs.protocols.prompts import Chat
from rllib_arpo.terminal import about, say
from tuned_examples.smollm2 import cached_folder

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

#: (count, seed) -> transcripts.
Rows = Callable[[int, int], Iterable[object]]
#: Raise this version after a change of the weights that `mark` does not see, such as the way in which weights are drawn
#: or an argument of the trainer.
VERSION = 1
#: How many rows stand for all rows of a stage in the mark of a model.
MARKED_ROWS = 100
END, PADDING = "<|end|>", "<|padding|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
TAGS = ("<search>", "</search>", "<result>", "</result>", "<answer>", "</answer>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True, slots=True)
class ColdStart:
    """One call of `cold_start.train`.

    Attributes:
        rows: the name of the texts that are read.
        count: the number of transcripts, each of which is read `epochs` times.
        batch_size: transcripts per optimizer step.
    """

    rows: str
    count: int
    epochs: int
    batch_size: int
    lr: float
    seed: int = 0

    def __call__(self, model: str, output: Path, rows: Mapping[str, Rows]) -> list[float]:
        """Tunes the model of one folder into another; returns the logged losses."""
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder, "transcripts.jsonl")
            data.write_text("".join(json.dumps(row) + "\n" for row in rows[self.rows](self.count, self.seed)))
            say(about("model", f"cold start on {self.count:,} texts ({self.rows}), once"))
            return cold_start.train(self.settings(model, str(data), str(output)))

    def settings(self, model: str, data: str, output: str) -> ColdStartSettings:
        """The settings for tuning `model` on the file `data` into the folder `output`."""
        return ColdStartSettings(
            model=model, data=data, output=output, epochs=self.epochs, lr=self.lr, batch_size=self.batch_size,
            gradient_accumulation=1, seed=self.seed,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallModel:
    """A small new Llama and its training stages.

    Attributes:
        rope_theta: small because the texts are short: more dimensions of a head then tell neighbours apart.
        num_backward_heads: heads of the first layer that attend to the token before at the start (`look_back`). With
            such heads a model can continue a text as it went on after the same word before; learning them takes long.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    initializer_range: float = 0.03
    rope_theta: float = 100.0
    num_backward_heads: int = 2
    stages: tuple[ColdStart, ...]

    def cold_started(
        self,
        name: str,
        tokenizer: PreTrainedTokenizerFast,
        rows: Mapping[str, Rows],
        cache_dir: str | Path | None = None,
    ) -> str:
        """The folder of the model after its stages, whose name begins with `name`; made the first time."""
        name = f"{name}-{mark(self, self.stages, tokenizer, rows)}"
        return cached_folder(name, lambda folder: self._make(folder, tokenizer, rows), cache_dir)

    def with_seed(self, seed: int) -> SmallModel:
        """Another model of the same kind: `seed` draws its first weights, the demonstrations and their order.

        Raises:
            ValueError: numpy takes no such seed.
        """
        if not 0 <= seed < 1 << 32:
            raise ValueError(f"The seed of a cold start must be from 0 to {(1 << 32) - 1}, not {seed}.")
        return replace(self, stages=tuple(replace(stage, seed=seed) for stage in self.stages))

    def _make(self, folder: Path, tokenizer: PreTrainedTokenizerFast, rows: Mapping[str, Rows]) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            model = Path(scratch, "random")
            self.write_random(model, tokenizer)
            for number, stage in enumerate(self.stages):
                tuned = folder if stage is self.stages[-1] else Path(scratch, str(number))
                stage(str(model), tuned, rows)
                model = tuned

    def write_random(self, folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
        """Writes the untrained model of the first stage's seed (0 without stages), and its tokenizer."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.stages[0].seed if self.stages else 0)
            self.random_model(tokenizer).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    def random_model(self, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
        """The untrained model, drawn from torch's global random numbers."""
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=self.hidden_size,
            intermediate_size=8 * self.hidden_size // 3,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            attention_bias=True,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_theta},
            initializer_range=self.initializer_range,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        model = LlamaForCausalLM(config)
        for head in range(self.num_backward_heads):
            look_back(model, head)
        return model


def look_back(model: LlamaForCausalLM, head: int, strength: float = 5.0) -> None:
    """Makes a head of the first layer attend to the token before, by the biases of its queries and keys.

    Rotary embeddings turn the pair (i, i + d/2) of a query or key of position m by `m theta_i`. With the key `s (1, 0)`
    and the query `s (cos theta_i, -sin theta_i)` the score is `s^2 sum_i cos((m - n - 1) theta_i) / sqrt(d)`, which is
    largest at n = m - 1.
    """
    import torch

    attention = model.model.layers[0].self_attn
    angles = model.model.rotary_emb.inv_freq.float()
    begin = head * attention.head_dim
    query, key = (p.bias[begin : begin + attention.head_dim] for p in (attention.q_proj, attention.k_proj))
    with torch.no_grad():
        query.copy_(strength * torch.cat([angles.cos(), -angles.sin()]))
        key.copy_(strength * torch.cat([torch.ones_like(angles), torch.zeros_like(angles)]))


def make_tokenizer(words: Iterable[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE: tags, digits and these words are a token each, frequent ones first; any text encodes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        special_tokens=[PADDING, END, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(words, trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False, lstrip=True) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PADDING,
        additional_special_tokens=list(ROLES),
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def mark(
    recipe: SmallModel | ColdStart,
    stages: Sequence[ColdStart],
    tokenizer: PreTrainedTokenizerFast,
    rows: Mapping[str, Rows],
) -> str:
    """Twelve digits that change with the weights; they depend on the settings and the tokens of the stages."""
    settings = [stage.settings("", "", "") for stage in stages]
    text = [repr((VERSION, recipe, settings)), tokenizer.backend_tokenizer.to_str(), str(tokenizer.chat_template)]
    for stage in stages:
        for row in rows[stage.rows](min(stage.count, MARKED_ROWS), stage.seed):
            text.append(json.dumps(tokenize_transcript(Chat(tokenizer), Transcript(row["messages"]))))
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:12]
