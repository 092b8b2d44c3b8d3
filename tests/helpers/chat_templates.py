"""Chat templates with tools, in the three shapes that the function calling protocol has to fit.

They write what the published templates of these models write; how it is put together is simpler.
"""

from dataclasses import dataclass, field
from functools import partial

_TOOLS = (
    "# Tools\\n\\nYou may call functions. Their signatures are within <tools></tools>:\\n<tools>"
    "{% for tool in tools %}\\n{{ tool | tojson }}{% endfor %}\\n</tools>\\n\\n"
    "For each call, return a json object within <tool_call></tool_call>:\\n"
    '<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>'
).replace("\\n", "\n")
_CALLS = (
    "{% for call in message.tool_calls %}{% if message.content or not loop.first %}\n{% endif %}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}"
)
_TOOL_MESSAGE = (
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ message.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
)
_HEAD = (
    "{% if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}DEFAULT"
    "{% endif %}\n\n" + _TOOLS + "<|im_end|>\n"
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
)
_PLAIN = "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"

#: Results are blocks in a user message; several in a row share one.
QWEN25 = (
    _HEAD.replace("DEFAULT", "You are a helpful assistant.") + "{% for message in messages %}"
    "{% if message.role == 'tool' %}" + _TOOL_MESSAGE + "{% elif message.role == 'assistant' and message.tool_calls %}"
    "<|im_start|>assistant\n{{ message.content }}" + _CALLS + "<|im_end|>\n"
    "{% elif message.role != 'system' or not loop.first %}" + _PLAIN + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

#: The same; thoughts of turns before the last question are left out, the last message always shows one.
QWEN3 = (
    _HEAD.replace("DEFAULT", "") + "{% set ns = namespace(asked=0) %}"
    "{% for message in messages %}{% if message.role == 'user' %}{% set ns.asked = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% for message in messages %}{% if message.role == 'tool' %}"
    + _TOOL_MESSAGE
    + "{% elif message.role == 'assistant' %}"
    "{% set thought = message.content.split('</think>')[0].split('<think>')[-1].strip('\n')"
    " if '</think>' in message.content else '' %}"
    "{% set said = message.content.split('</think>')[-1].lstrip('\n') %}<|im_start|>assistant\n"
    "{% if loop.index0 > ns.asked and (loop.last or thought) %}<think>\n{{ thought }}\n</think>\n\n{% endif %}"
    "{{ said }}"
    + _CALLS.replace("message.content", "said")
    + "<|im_end|>\n{% elif message.role != 'system' or not loop.first %}"
    + _PLAIN
    + "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

#: Results are JSON with the tool's name, in messages of the role "tool".
HERMES = (
    _HEAD.replace("DEFAULT", "") + "{% for message in messages %}{% if message.role == 'tool' %}"
    "{% if message.name is not defined %}{{ raise_exception('A result needs the name of its tool.') }}{% endif %}"
    "<|im_start|>tool\n<tool_response>\n"
    '{"name": "{{ message.name }}", "content": {{ message.content | tojson }}}'
    "\n</tool_response><|im_end|>\n{% elif message.role == 'assistant' and message.tool_calls %}"
    "<|im_start|>assistant\n{{ message.content }}" + _CALLS + "<|im_end|>\n"
    "{% elif message.role != 'system' or not loop.first or not tools %}" + _PLAIN + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

#: Opens the thought itself, as templates of models that always think do.
THINKING = QWEN25.removesuffix("{% endif %}") + "<think>\n{% endif %}"
TEMPLATES = {"qwen2.5": QWEN25, "qwen3": QWEN3, "hermes": HERMES}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A chat template in the style of a family of models, with what is known of it.

    Attributes:
        special: the tokenizer's special tokens; the last one is its end of a text.
        end: the token that ends a turn; by default the end of a text.
        between: the token that ends a turn which a message follows.
        final: what the template writes after the last turn.
        opens: what it writes of a thought before a turn.
        system: whether it takes system messages.
        lead: what it writes before the assistant's texts, and the model itself in a rollout.
        calls: why "function_calling" is refused.
        replies: why a world that talks is refused.
    """

    template: str
    special: tuple[str, ...] = ("<|im_start|>", "<|im_end|>")
    end: str = ""
    between: str = ""
    final: str | None = None
    opens: str = ""
    system: bool = True
    lead: str = ""
    calls: str = "has no support for tools that are called with <tool_call>"
    replies: str = ""
    kwargs: dict = field(default_factory=dict)

    def tokenizer(self):
        tokenizer = merging_tokenizer(self.template)
        tokenizer.add_special_tokens({"additional_special_tokens": list(self.special), "eos_token": self.special[-1]})
        return tokenizer


_SAID = "{{ m.content.split('</think>')[-1].lstrip('\n') }}"


def _rounds(turn: str, prompt: str, before: str = "") -> str:
    """A template of one text for each message `m`."""
    return f"{before}{{% for m in messages %}}{turn}{{% endfor %}}{{% if add_generation_prompt %}}{prompt}{{% endif %}}"


_CHATML = _rounds("<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n", "<|im_start|>assistant\n")
_NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('No system messages.') }}{% endif %}"
_INST = "{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]{% else %} {{ m.content }}</s>{% endif %}"
_LAST = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}"
)
_SYSTEM_LAST = (
    "{% if m.role == 'user' %}[INST] {% if loop.index0 == ns.last and messages[0].role == 'system' %}"
    "{{ messages[0].content }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}</s>{% endif %}"
)
_GEMMA = (
    "{% if m.role != 'system' %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{% if loop.index0 == 1 and messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "{{ m.content | trim }}<end_of_turn>\n{% endif %}"
)
_R1 = (
    "{% if m.role == 'user' %}<|User|>{{ m.content }}{% elif m.role == 'assistant' %}<|Assistant|>"
    + _SAID
    + "<|eos|>{% else %}{{ m.content }}{% endif %}"
)
_GLM45 = (
    "{% if m.role == 'assistant' %}<|assistant|>\n{% if '</think>' in m.content and loop.last %}"
    "<think>{{ m.content.split('</think>')[0].split('<think>')[-1] }}</think>{% else %}<think></think>{% endif %}\n"
    + _SAID
    + "{% else %}<|{{ m.role }}|>\n{{ m.content }}{% endif %}"
)
_OLMO = (
    "<|{{ m.role }}|>\n{{ m.content }}{% if m.role == 'assistant' %}<|eos|>{% endif %}"
    "{% if not loop.last or m.role != 'assistant' %}\n{% endif %}"
)
_HEADER = "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
_gemma = partial(
    Family, special=("<bos>", "<start_of_turn>", "<end_of_turn>", "<eos>"), end="<end_of_turn>", system=False
)
#: Ids, headers and thoughts as in the published templates; the texts are shorter.
FAMILIES = {
    "qwen2.5": Family(template=QWEN25, calls=""),
    "qwen3": Family(template=QWEN3, calls=""),
    "qwen3 without thoughts": Family(
        template=QWEN3, calls="", opens="<think>\n\n</think>\n\n", kwargs={"enable_thinking": False}
    ),
    "qwen3 thinking": Family(
        template=QWEN3.removesuffix("{% endif %}{% endif %}").rpartition("{% if enable")[0] + "<think>\n{% endif %}",
        calls="",
        opens="<think>\n",
    ),
    "qwen2.5 thinking": Family(template=THINKING, calls="", opens="<think>\n"),
    "hermes": Family(template=HERMES, calls=""),
    "qwen3 coder": Family(
        template=QWEN25.replace(
            '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}',
            "<function={{ call.function.name }}>",
        ),
        calls="writes a call that cannot be read back",
    ),
    "smollm2": Family(
        template="{% if messages[0].role != 'system' %}<|im_start|>system\nHelp.<|im_end|>\n{% endif %}" + _CHATML
    ),
    "deepseek r1 distill": Family(
        template=_rounds(_R1, "<|Assistant|><think>\n", "<|bos|>"),
        special=("<|bos|>", "<|User|>", "<|Assistant|>", "<|eos|>"),
        opens="<think>\n",
    ),
    "llama 3": Family(
        template=_rounds(
            _HEADER + "{{ m.content | trim }}<|eot_id|>",
            _HEADER.replace("{{ m.role }}", "assistant"),
            "<|begin_of_text|>",
        ),
        special=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>"),
        end="<|eot_id|>",
    ),
    "mistral": Family(template=_rounds(_INST, "", "<s>" + _NO_SYSTEM), special=("<s>", "</s>"), system=False, lead=" "),
    "mistral 3": Family(
        template=_rounds(_SYSTEM_LAST, "", "<s>" + _LAST),
        special=("<s>", "</s>"),
        lead=" ",
        replies="changes what it has written before a turn when a message of the role 'user' follows",
    ),
    "gemma 2": _gemma(template=_rounds(_GEMMA, "<start_of_turn>model\n", "<bos>" + _NO_SYSTEM)),
    "gemma 3": _gemma(template=_rounds(_GEMMA, "<start_of_turn>model\n", "<bos>")),
    "phi 3": Family(
        template=_rounds(
            "{% if m.role != 'system' %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endif %}", "<|assistant|>\n"
        ),
        special=("<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"),
        end="<|end|>",
        system=False,
    ),
    "phi 4": Family(
        template=_rounds(
            "<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>", "<|im_start|>assistant<|im_sep|>"
        ),
        special=("<|im_start|>", "<|im_sep|>", "<|im_end|>"),
    ),
    "olmo 2": Family(template=_rounds(_OLMO, "<|assistant|>\n", "<|eos|>"), special=("<|eos|>",)),
    "glm 4": Family(
        template=_rounds("<|{{ m.role }}|>\n{{ m.content }}", "<|assistant|>\n", "[gMASK]<sop>"),
        special=("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|endoftext|>"),
        between="<|user|>",
        final="",
        calls="does not end the assistant's messages with a special token",
    ),
    "glm 4.5": Family(
        template=_rounds(_GLM45, "<|assistant|>", "[gMASK]<sop>"),
        special=("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|endoftext|>"),
        between="<|user|>",
        final="",
        lead="\n",
        calls="does not end the assistant's messages with a special token",
    ),
    "vicuna": Family(
        template=_rounds("{{ m.role | upper }}: {{ m.content }}\n", "ASSISTANT: "),
        special=("</s>",),
        end="</s>",
        final="",
        calls="does not end the assistant's messages with a special token",
        replies="does not end the assistant's messages with a special token",
    ),
}


def jinja(template: str) -> str:
    """As transformers needs it: a line break right after a statement would be trimmed."""
    return template.replace("%}\n", "%}{{ '\\n' }}")


def calling_folder(folder, chat_template: str = QWEN25) -> str:
    """The folder, with a tokenizer that calls functions."""
    merging_tokenizer(chat_template).save_pretrained(folder)
    return str(folder)


def merging_tokenizer(chat_template: str):
    """A byte-level BPE tokenizer that merges over white space, as real ones do, with ChatML's tokens and tool tags."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    text = 'user\nassistant\n\n\ntool\n<tool_response>\n42.\n</tool_response>\n{"name": "search", "arguments": {"'
    tokenizer.train_from_iterator([text] * 20, trainer)
    # Qwen's tokenizers have these as tokens that are not special.
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
        chat_template=jinja(chat_template),
    )
