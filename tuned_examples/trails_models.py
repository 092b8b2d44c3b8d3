"""Cold-started models for the task "trails": a tiny one, which is made here, and SmolLM2-135M. Each is made once.

python -m tuned_examples.trails_models small        # prints the folder; makes the model in some minutes
python -m tuned_examples.trails_models smollm2
"""

from __future__ import annotations

import argparse
import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rllib_arpo.envs.tasks.trail_forms import ANY, FORMS, LATE, MAIN, SYLLABLES, TrailForm
from tuned_examples.small_models import TAGS, ColdStart, Rows, SmallModel, make_tokenizer, mark
from tuned_examples.smollm2 import cached_folder, smollm2_135m_instruct
from tuned_examples.trails_demonstrations import PERFECT, ROWS, transcripts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

#: First the model learns to read, then to be unsure where it has to choose.
MODEL = SmallModel(
    hidden_size=160,
    num_layers=4,
    num_heads=5,
    stages=(
        ColdStart("exercises", count=32_000, epochs=1, batch_size=32, lr=1e-3),
        ColdStart("perfect", count=14_400, epochs=1, batch_size=32, lr=1e-3),
        ColdStart("imperfect", count=4800, epochs=1, batch_size=32, lr=1e-3),
    ),
)

#: Form -> its model, if it is another one. With as few perfect demonstrations as on the other forms a model may still
#: confuse the names of two hits.
MODELS = dict.fromkeys(
    (LATE.name, ANY.name),
    replace(
        MODEL,
        stages=tuple(replace(stage, count=28_800) if stage.rows == "perfect" else stage for stage in MODEL.stages),
    ),
)


def trails_tokenizer() -> PreTrainedTokenizerFast:
    """Tags, digits, syllables and the words of transcripts are a token each; a name is always the same three tokens."""
    syllables = [text for syllable in SYLLABLES for text in (syllable, f" {syllable.capitalize()}")]
    return make_tokenizer([*1000 * syllables, *_words()])


def _words(num_transcripts: int = 200) -> list[str]:
    """The text of some transcripts without names and tags."""
    texts = [
        message["content"] for row in transcripts(num_transcripts, demonstrator=PERFECT) for message in row["messages"]
    ]
    name = f" ({'|'.join(SYLLABLES)}){{3}}"
    return [re.sub(f"{'|'.join(TAGS)}|{name}", "", text, flags=re.IGNORECASE) for text in texts]


def trails_rows(form: TrailForm = MAIN) -> dict[str, Rows]:
    """The texts of a form by name."""
    return {name: functools.partial(made, form=form) for name, made in ROWS.items()}


def small_model(
    recipe: SmallModel | None = None, cache_dir: str | Path | None = None, *, form: str = MAIN.name, seed: int = 0
) -> str:
    """Folder of the small model, of 1.3 million parameters, cold-started for a form of trails with a seed.

    Args:
        recipe: None: the form's.
    """
    recipe = recipe or MODELS.get(form, MODEL)
    name = "trails-small" if form == MAIN.name else f"trails-small-{form}"
    return recipe.with_seed(seed).cold_started(name, trails_tokenizer(), trails_rows(FORMS[form]), cache_dir)


def cold_started_smollm2(cache_dir: str | Path | None = None) -> str:
    """Folder of SmolLM2-135M-Instruct after a cold start on transcripts of an imperfect demonstrator."""
    from transformers import AutoTokenizer

    stage = ColdStart("imperfect", count=160, epochs=1, batch_size=4, lr=2e-4)
    model = smollm2_135m_instruct(cache_dir)
    name = f"trails-{Path(model).name}-{mark(stage, [stage], AutoTokenizer.from_pretrained(model), trails_rows())}"
    return cached_folder(name, lambda folder: stage(model, folder, trails_rows()) and None, cache_dir)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=("small", "smollm2"))
    print(small_model() if parser.parse_args().model == "small" else cold_started_smollm2())
