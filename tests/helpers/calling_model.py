"""A tiny model that calls the python tool: random weights never would."""

from __future__ import annotations

from pathlib import Path

import torch

from rllib_arpo.envs.tool_env import ToolEnv
from tests.helpers.models import tiny_model

NUM_STEPS = 300


def calling_model(folder: Path, task: str) -> str:
    """Trains a tiny Llama for some seconds on "call, result, answer" after the task's first ten prompts.

    It keeps to the format mostly, and is unsure which digits to write.
    """
    from transformers import AutoModelForCausalLM

    path = tiny_model(folder, seed=1)
    num_threads = torch.get_num_threads()
    # Its layers are too small to share among threads.
    torch.set_num_threads(1)
    env = ToolEnv({"model_name_or_path": path, "task": task})
    generator = torch.Generator().manual_seed(0)
    rows = [row for number in range(10) for row in _transcripts(env, number, generator)]
    width = max(map(len, rows))
    padded = torch.tensor([row + [-100] * (width - len(row)) for row in rows])
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(NUM_STEPS):
        batch = padded[torch.randint(len(padded), (8,), generator=generator)]
        mask = batch >= 0
        loss = model(input_ids=batch.clamp(min=0), attention_mask=mask.long(), labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.set_num_threads(num_threads)
    model.save_pretrained(path)
    return path


def _transcripts(env: ToolEnv, number: int, generator: torch.Generator) -> list[list[int]]:
    observations, _ = env.reset(options={"question": number})
    prompt, rows = observations["0"].tolist(), []
    for _ in range(4):
        a, b = torch.randint(2, 10, (2,), generator=generator).tolist()
        call = f"<python> print({a} * {b}) </python>"
        result = f"\n<result>\n{a * b}\n</result>\n"
        reply = f"{call}{result}<answer> \\boxed{{{a * b}}} </answer>"
        rows.append([*prompt, *env.tokenizer.encode(reply, add_special_tokens=False), env.tokenizer.eos_token_id])
    return rows
