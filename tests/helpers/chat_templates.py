"""Chat templates with tools, in the three shapes that the function calling protocol has to fit.

They write what the published templates of these models write; how it is put together is simpler.
"""

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
