"""Cold start: supervised fine-tuning on tool-use transcripts, before reinforcement learning.

    python -m rllib_arpo.cold_start --model Qwen/Qwen2.5-3B-Instruct --data transcripts.jsonl --output DIR

ARPO starts from a model that already calls tools now and then. This command makes one
from any causal LM with a chat template. A row of the data (JSON lines or parquet) is

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}

whose assistant texts hold tool calls and, in `<result>...</result>`, what the tools answered. The loss is taken on what
the model writes itself: the assistant's text and the end-of-turn token, without the `<result>` blocks and the white
space around them. On several GPUs: `accelerate launch -m rllib_arpo.cold_start ...`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The label of a token without a loss (PyTorch's `ignore_index`).
IGNORED = -100

_RESULT_TAG = re.compile(r"</?result>")
# The environment writes the white space around a block too.
_RESULT_BLOCK = re.compile(r"(\s*<result>.*?</result>\s*)", re.DOTALL)


class TranscriptError(ValueError):
    """A row of the data cannot be trained on; the message names the file and the row."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a transcript; `generated` tells whether the model writes it itself."""

    text: str
    generated: bool


def read_transcripts(path: str | Path) -> list[list[dict[str, str]]]:
    """The `messages` of every row of a `.jsonl` or `.parquet` file, checked.

    Raises:
        FileNotFoundError: there is no such file.
        TranscriptError: a row is not a transcript; rows are counted from 0.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    readers = {".jsonl": _read_json_lines, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise TranscriptError(f"{path}: transcripts are read from .jsonl or .parquet, not from {path.suffix!r}.")
    transcripts = [_checked_messages(row, f"{path}, row {number}") for number, row in readers[path.suffix](path)]
    if not transcripts:
        raise TranscriptError(f"{path} has no rows.")
    return transcripts


def _read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except json.JSONDecodeError as error:
                    raise TranscriptError(f"{path}, row {number}: not JSON ({error}).") from None


def _read_parquet(path: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path, columns=["messages"]).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise TranscriptError(f"{path}: not a complete parquet file ({error}).") from None
    yield from enumerate(rows)


def _checked_messages(row: Any, place: str) -> list[dict[str, str]]:
    """The row's messages; `place` begins the error message."""
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or not messages:
        raise TranscriptError(f'{place}: a row is {{"messages": [...]}} with at least one message.')
    for message in messages:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise TranscriptError(f"{place}: every message has a role and a content, both text.")
    if messages[-1]["role"] != "assistant":
        raise TranscriptError(f"{place}: the last message must be the assistant's, not the {messages[-1]['role']}'s.")
    for message in messages:
        if message["role"] == "assistant" and _RESULT_TAG.search(_RESULT_BLOCK.sub("", message["content"])):
            raise TranscriptError(f"{place}: a <result> or </result> tag of the assistant's text has no partner.")
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def split_transcript(tokenizer, messages: list[dict[str, str]]) -> list[Segment]:
    """Cuts a transcript into the text that the model writes and the text that it is given.

    Chat templates may change an assistant's text (Qwen3's drops everything before the last `</think>`), while in a
    rollout the model's tokens stay as they are. So the template renders markers in place of the assistant's texts, and
    the last answer follows the template's generation prompt, as it does in a rollout.

    Raises:
        ValueError: the tokenizer's chat template cannot be used in this way.
    """
    if tokenizer.chat_template is None or tokenizer.eos_token is None:
        raise ValueError(f"The tokenizer of {tokenizer.name_or_path} needs a chat template and an end-of-turn token.")
    answers = {f"\ue000{i}\ue001": m["content"] for i, m in enumerate(messages) if m["role"] == "assistant"}
    marked = [
        {"role": m["role"], "content": f"\ue000{i}\ue001" if m["role"] == "assistant" else m["content"]}
        for i, m in enumerate(messages)
    ]
    rendered = tokenizer.apply_chat_template(marked[:-1], tokenize=False, add_generation_prompt=True)
    rendered += marked[-1]["content"] + tokenizer.eos_token

    segments: list[Segment] = []
    for marker, answer in answers.items():
        given, found, rendered = rendered.partition(marker)
        if not found or not rendered.startswith(tokenizer.eos_token):
            raise ValueError(
                f"The chat template of {tokenizer.name_or_path} does not end the assistant's messages with the "
                f"end-of-turn token {tokenizer.eos_token!r}, so what the model writes cannot be told apart."
            )
        rendered = rendered.removeprefix(tokenizer.eos_token)
        # With a capturing group, `split` alternates between the text outside of the blocks and the blocks.
        pieces = [Segment(text, i % 2 == 0) for i, text in enumerate(_RESULT_BLOCK.split(answer))]
        segments += [Segment(given, False), *pieces, Segment(tokenizer.eos_token, True)]
    return [segment for segment in segments if segment.text]


def tokenize_transcript(tokenizer, messages: list[dict[str, str]]) -> dict[str, list[int]]:
    """`input_ids` and `labels`, both [t]; labels are `IGNORED` on every token that the model did not write.

    Segments are tokenized one by one, as a rollout does: no token straddles the end of a tool call, where a tokenizer
    would merge `</search>` and `<result>` into pieces that no stop string ever matches.
    """
    input_ids: list[int] = []
    labels: list[int] = []
    for segment in split_transcript(tokenizer, messages):
        ids = tokenizer(segment.text, add_special_tokens=False)["input_ids"]
        input_ids += ids
        labels += ids if segment.generated else [IGNORED] * len(ids)
    return {"input_ids": input_ids, "labels": labels}


def collate(examples: list[dict[str, list[int]]], pad_token_id: int) -> dict[str, Any]:
    """Pads a batch on the right: `input_ids`, `labels` and `attention_mask`, each [b, longest]."""
    import torch

    longest = max(len(example["input_ids"]) for example in examples)

    def pad(rows: list[list[int]], value: int):
        return torch.tensor([row + [value] * (longest - len(row)) for row in rows])

    return {
        "input_ids": pad([example["input_ids"] for example in examples], pad_token_id),
        "labels": pad([example["labels"] for example in examples], IGNORED),
        "attention_mask": pad([[1] * len(example["input_ids"]) for example in examples], 0),
    }


def load_examples(tokenizer, path: str | Path, max_length: int) -> list[dict[str, list[int]]]:
    """The tokenized transcripts of a file; those of more than `max_length` tokens are left out, and counted aloud.

    A transcript is never cut: its end is the answer, the very thing to be learnt.
    """
    examples = [tokenize_transcript(tokenizer, messages) for messages in read_transcripts(path)]
    kept = [example for example in examples if len(example["input_ids"]) <= max_length]
    if not kept:
        raise TranscriptError(f"{path}: every transcript is longer than {max_length} tokens; raise --max-length.")
    if len(kept) < len(examples):
        left_out = len(examples) - len(kept)
        print(f"{left_out} of {len(examples)} transcripts are longer than {max_length} tokens and are left out.")
    return kept


def train(args: argparse.Namespace) -> list[float]:
    """Fine-tunes `args.model` on `args.data` into the folder `args.output`; returns the logged training losses.

    Raises:
        FileExistsError: the output folder is not empty.
        TranscriptError, FileNotFoundError: the data cannot be read.
    """
    output = Path(args.output)
    if output.exists() and any(output.iterdir()):
        raise FileExistsError(f"The output folder {output} is not empty.")

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    examples = load_examples(tokenizer, args.data, args.max_length)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    pad_token_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(output),
            num_train_epochs=args.epochs,
            learning_rate=args.lr,
            lr_scheduler_type="cosine",
            warmup_steps=args.warmup,
            weight_decay=args.weight_decay,
            per_device_train_batch_size=args.batch_size,
            gradient_accumulation_steps=args.gradient_accumulation,
            gradient_checkpointing=args.gradient_checkpointing,
            bf16=torch.cuda.is_available(),
            dataloader_pin_memory=torch.cuda.is_available(),
            logging_steps=args.logging_steps,
            save_strategy="no",
            report_to=args.report_to,
            remove_unused_columns=False,
            seed=args.seed,
        ),
        train_dataset=examples,
        data_collator=lambda batch: collate(batch, pad_token_id),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(str(output))
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rllib_arpo.cold_start", description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="Hugging Face id or folder of a causal LM with a chat template")
    parser.add_argument("--data", required=True, help="transcripts, .jsonl or .parquet")
    parser.add_argument("--output", required=True, help="folder for the fine-tuned model; must be empty or new")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--lr", type=float, default=7e-6, help="peak learning rate; it falls along a cosine")
    parser.add_argument("--warmup", type=float, default=0.1, help="steps of warm-up; below 1: that share of all steps")
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--batch-size", type=int, default=4, help="transcripts per device and pass")
    parser.add_argument("--gradient-accumulation", type=int, default=4, help="passes per optimizer step")
    parser.add_argument("--max-length", type=int, default=4096, help="longer transcripts (in tokens) are left out")
    parser.add_argument("--gradient-checkpointing", action="store_true", help="less memory, about a third slower")
    parser.add_argument("--logging-steps", type=int, default=10)
    parser.add_argument("--report-to", choices=("none", "mlflow"), default="none")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    losses = train(args)
    if losses:
        print(f"Training loss from {losses[0]:.3f} to {losses[-1]:.3f}.")
    print(f"The fine-tuned model is in {args.output}.")


if __name__ == "__main__":
    main()
