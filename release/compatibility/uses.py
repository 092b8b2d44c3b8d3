"""What `rllib_arpo` uses of vLLM and torch, read from its own source.

Found without help: imported names, calls with their keywords, attributes of imported classes and of parameters with
such an annotation, overridden methods, variables of the environment. The tables below say what cannot be seen.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from release.compatibility.sources import Function, decorators, parameters_of

PACKAGE = Path(__file__).resolve().parents[2] / "rllib_arpo"
#: Modules whose names are followed. What torch itself gives is written in C, and does not change.
FOLLOWED = re.compile(r"vllm(\..+)?|torch\..+")
ENGINE_ARGS = "vllm:EngineArgs"
WORKER = "vllm.v1.worker.gpu_worker:Worker"

#: File -> expression -> the class of its value, where no annotation says it.
RECEIVERS = {
    "engine/vllm/__init__.py": {"current_platform": "vllm.platforms.interface:Platform"},
    "engine/vllm/arguments.py": {
        "config.model_config": "vllm.config:ModelConfig",
        "current_platform": "vllm.platforms.interface:Platform",
    },
    "engine/vllm/engine.py": {
        "self._llm": "vllm:LLMEngine",
        "self._llm.output_processor": "vllm.v1.engine.output_processor:OutputProcessor",
        "self._llm.output_processor.request_states[name]": "vllm.v1.engine.output_processor:RequestState",
        "self._llm.output_processor.request_states[name].logprobs_processor": (
            "vllm.v1.engine.logprobs:LogprobsProcessor"
        ),
        "self._llm.model_executor": "vllm.v1.executor:Executor",
        "client": "vllm.v1.engine.core_client:InprocClient",
        "output": "vllm:RequestOutput",
        "scored": "vllm:RequestOutput",
        "new": "vllm:CompletionOutput",
        "output.outputs[0]": "vllm:CompletionOutput",
        "log_probs[token]": "vllm.logprobs:Logprob",
        # Every model of a text generator has it.
        "model": "vllm.model_executor.models.llama:LlamaForCausalLM",
        "model.logits_processor": "vllm.model_executor.layers.logits_processor:LogitsProcessor",
    },
    "engine/vllm/entropy_processor_v2.py": {
        "self._prefill_len": "vllm.v1.worker.gpu.buffer_utils:UvaBackedTensor",
        "self._prompt_len": "vllm.v1.worker.gpu.buffer_utils:UvaBackedTensor",
    },
    "engine/vllm/sampled_log_probs.py": {
        "worker": WORKER,
        "worker.model_runner": "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
        "sampler": "vllm.v1.sample.sampler:Sampler",
    },
    "engine/vllm/weight_transfer.py": {"trainer": "vllm.distributed.weight_transfer:TrainerWeightTransferEngine"},
    "learner/sharding.py": {"part": "torch.distributed.fsdp:FSDPModule"},
}
#: Functions that call a method of vLLM's worker by its name, and its arguments from dictionaries.
BY_NAME = ("self._llm.collective_rpc", "self._call", "self._call_all")
#: Dictionaries of arguments of vLLM's engine.
ARGUMENTS = ("ours", "defaults")
#: Arguments of vLLM's engine that other folders set or read.
OTHER_ARGUMENTS = ("kv_cache_dtype", "tensor_parallel_size", "gpu_memory_utilization", "kv_cache_memory_bytes")
#: What `token_prompt` in engine/vllm/arguments.py writes as a dictionary.
PROMPT = ("vllm.inputs.engine:TokensInput.type", "vllm.inputs.engine:TokensInput.prompt_token_ids")
#: vLLM's worker passes any arguments of `reload_weights` on to its model runner, of either kind.
RELOADS = tuple(
    f"vllm.v1.worker.{runner}:GPUModelRunner.reload_weights" for runner in ("gpu_model_runner", "gpu.model_runner")
)
#: Classes of ours that vLLM calls without being their base.
STAND_INS = {"EngineGroupClient": "vllm.distributed.weight_transfer:VLLMWeightSyncClient"}


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of a call; `complete`: there are no others, as `*` and `**` would add."""

    num_args: int
    keywords: tuple[str, ...]
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a name.

    Attributes:
        name: "module:name" or "module:Class.member".
        where: the file below `rllib_arpo`, and the line.
        call: None: the name is only read.
        overridden_by: the decorators and the parameters of our own method that overrides this one.
        optional: the code also works where the name is missing.
    """

    name: str
    where: str
    call: Call | None = None
    overridden_by: str | None = None
    optional: bool = False


def all_uses() -> list[Use]:
    """All of the package's uses, in the order of the files."""
    found = [
        use
        for path in sorted(PACKAGE.rglob("*.py"))
        if PACKAGE / "envs" not in path.parents
        for use in uses_of_file(path)
    ]
    found += [Use(f"{ENGINE_ARGS}.{name}", "(other folders)") for name in OTHER_ARGUMENTS]
    found += [Use(name, "engine/vllm/arguments.py") for name in PROMPT]
    return found + [Use(name, "engine/vllm/engine.py", call=Call(0, ("weights_iterator",))) for name in RELOADS]


def uses_of_file(path: Path) -> Iterator[Use]:
    name = str(path.relative_to(PACKAGE))
    tree = ast.parse(path.read_text(encoding="utf-8"))
    known = imported_names(tree)
    for alias in known.values():
        yield Use(alias, name)
    yield from _Reader(name, known | RECEIVERS.get(name, {})).read(tree)


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Name in the file -> "module:name" of what it imports from `FOLLOWED`, in functions as well."""
    return {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and FOLLOWED.fullmatch(node.module or "")
        for alias in node.names
    }


class _Reader:
    """Args: `known` says the class of expressions, or what they were imported as."""

    def __init__(self, file: str, known: dict[str, str]):
        self.file, self.known = file, known
        self._of_engine = file.startswith("engine/vllm/")

    def read(self, node: ast.AST) -> Iterator[Use]:
        """The uses in a node and in all below it."""
        if isinstance(node, Function):
            yield from _Reader(self.file, self._inside(node)).read_below(node)
        else:
            yield from self.read_below(node)

    def read_below(self, node: ast.AST) -> Iterator[Use]:
        for child in ast.iter_child_nodes(node):
            yield from self._of(child)
            yield from self.read(child)

    def _inside(self, function: Function) -> dict[str, str]:
        """`known`, and the parameters whose annotation is known; parameters of the same name hide what was known."""
        known = dict(self.known)
        for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
            if argument.annotation is not None:
                annotation = ast.unparse(argument.annotation).removesuffix(" | None")
                known.pop(argument.arg, None)
                if annotation in self.known:
                    known[argument.arg] = self.known[annotation]
        return known

    def _of(self, node: ast.AST) -> Iterator[Use]:
        if isinstance(node, ast.Attribute) and (owner := self._known(node.value)):
            yield self._use(f"{owner}.{node.attr}", node)
        elif isinstance(node, ast.Call):
            yield from self._of_call(node)
        elif isinstance(node, ast.ClassDef):
            yield from self._of_class(node)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"VLLM_[A-Z0-9_]+", str(node.value)):
            yield self._use(f"vllm.envs:{node.value}", node)
        elif self._of_engine and isinstance(node, ast.Assign | ast.AugAssign):
            yield from self._of_arguments(node)

    def _of_call(self, node: ast.Call) -> Iterator[Use]:
        text = ast.unparse(node.func)
        keywords = tuple(keyword.arg for keyword in node.keywords if keyword.arg)
        plain = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
        call = Call(len(plain), keywords, len(plain) == len(node.args) and len(keywords) == len(node.keywords))
        if text == "getattr" and (owner := self._known(node.args[0])):
            yield self._use(f"{owner}.{node.args[1].value}", node, optional=len(node.args) == 3)
        elif self._of_engine and text in BY_NAME and isinstance(node.args[0], ast.Constant):
            passed = [key.value for child in ast.walk(node) if isinstance(child, ast.Dict) for key in child.keys]
            own = [keyword for keyword in keywords if keyword not in ("args", "kwargs")]
            yield self._use(f"{WORKER}.{node.args[0].value}", node, call=Call(0, (*passed, *own)))
        elif isinstance(node.func, ast.Attribute) and (owner := self._known(node.func.value)):
            yield self._use(f"{owner}.{node.func.attr}", node, call=call)
        elif (name := self._known(node.func)) and (plain or keywords):
            # A class: its constructor. The facts of a function say its own parameters.
            is_class = name.partition(":")[2][0].isupper()
            yield self._use(f"{name}.__init__" if is_class else name, node, call=call)

    def _of_class(self, node: ast.ClassDef) -> Iterator[Use]:
        bases = [*filter(None, map(self._known, node.bases)), *filter(None, [STAND_INS.get(node.name)])]
        for base in bases:
            for method in node.body:
                if isinstance(method, Function) and not re.match(r"_[^_]", method.name):
                    own = " ".join([*decorators(method), f"({parameters_of(method.args)})"])
                    yield self._use(f"{base}.{method.name}", method, overridden_by=own)

    def _of_arguments(self, node: ast.Assign | ast.AugAssign) -> Iterator[Use]:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Subscript) and ast.unparse(target.value) in ARGUMENTS:
            yield self._use(f"{ENGINE_ARGS}.{target.slice.value}", node)
        elif ast.unparse(target) in ARGUMENTS and isinstance(node.value, ast.Dict):
            for key in node.value.keys:
                yield self._use(f"{ENGINE_ARGS}.{key.value}", node)

    def _known(self, node: ast.AST) -> str | None:
        return self.known.get(ast.unparse(node))

    def _use(self, name: str, node: ast.AST, **details) -> Use:
        return Use(name, f"{self.file}:{node.lineno}", **details)
