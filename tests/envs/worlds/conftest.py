"""`sample`: agents of an API with a scripted model."""

import pytest

from rllib_arpo.engine.scripted_engine import ScriptedReply
from rllib_arpo.envs.tool_env import ToolEnv
from tests.helpers.chat_templates import QWEN25
from tests.helpers.models import byte_tokenizer
from tests.rollout.conftest import ended, settings

STRICT = (
    "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('The system message comes first.') }}{% endif %}{% endfor %}"
)


@pytest.fixture
def sample(tmp_path):
    """sample(program, numbers) -> the sampled questions: a root and a fork at its second call, then nothing more."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = STRICT + QWEN25
    tokenizer.save_pretrained(tmp_path)

    def script(request, times):
        prompt = tokenizer.decode(request.prompt_token_ids)
        calls = prompt.count("<|im_start|>assistant") - 1
        call = f'<tool_call>\n{{"name": "add", "arguments": {{"n": {calls + 1 + times}}}}}\n</tool_call>'
        words = "Right." if "You check." in prompt else "Done."
        asks = calls < 2 and words == "Done."
        said = tokenizer.encode(call) if asks else [*tokenizer.encode(words), tokenizer.eos_token_id]
        return ScriptedReply(said, entropies=3.0 if calls == 1 else 1.0)

    def run(program, numbers, deadline_s=30.0, **options):
        world = {"world": {program: options}, "protocol": "function_calling", "max_tool_calls": 8}
        env_config = {"model_name_or_path": str(tmp_path), **world}
        config = settings(question_deadline_s=deadline_s, max_context_tokens=4000, max_response_tokens=2000)
        questions = ended(script, len(tokenizer), numbers, [ToolEnv(env_config)], config)
        return [questions[number] for number in numbers], tokenizer

    return run
