"""A learner as one of several ranks, without Ray: any backend of torch.distributed, one rank being enough for it."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from rllib_arpo.core.tree import QuestionTree
from tests.helpers.other_python import free_port
from tests.learner.builders import build_learner, make_batch, make_config, record_gradients

T = TypeVar("T")


def in_processes(function: Callable[..., T], calls: Sequence[tuple[Any, ...]]) -> list[T]:
    """The results of `calls` of a function, given by their arguments, each in a process of its own."""
    context = get_context("forkserver")
    # Otherwise each process would import torch, Ray and transformers.
    context.set_forkserver_preload([function.__module__, "transformers.models.llama.modeling_llama"])
    with ProcessPoolExecutor(len(calls), context) as pool:
        return [call.result() for call in [pool.submit(function, *arguments) for arguments in calls]]


@dataclass(frozen=True, slots=True)
class Ranks:
    """How an update is spread.

    Attributes:
        backend: of torch.distributed; None: one learner without a process group.
        sharding: as in `ARPOConfig`.
        num_ranks: each is a process; a single one is this process.
        num_gpus: 1: rank i computes on GPU i; 0: on the CPU.
        learner_compile, dtype: as in `ARPOConfig`.
    """

    backend: str | None = None
    sharding: str = "none"
    num_ranks: int = 1
    num_gpus: int = 0
    learner_compile: str = "none"
    dtype: str = "float32"

    def gradients(self, model: str, questions: Sequence[QuestionTree]) -> dict[str, Tensor]:
        """Those of one update, before clipping, by name, on the CPU; only the first rank's folder has the weights."""
        port = free_port()
        if self.num_ranks == 1:
            return self._of_rank(0, port, model, questions)
        with TemporaryDirectory() as folder:
            without = copytree(model, f"{folder}/model", ignore=ignore_patterns("*.safetensors"))
            models = [model, *[without] * (self.num_ranks - 1)]
            # With FSDP2 the first rank has all gradients, and the others have none.
            return in_processes(self._of_rank, [(rank, port, name, questions) for rank, name in enumerate(models)])[0]

    def _of_rank(self, rank: int, port: int, model: str, questions: Sequence[QuestionTree]) -> dict[str, Tensor]:
        settings = {"sharding": self.sharding, "learner_compile": self.learner_compile}
        config = make_config(model, dtype=self.dtype, questions_per_minibatch=len(questions), **settings)
        # RLlib's learner counts as one of several when the configuration says so; the process group has the number.
        config.learners(num_learners=0 if self.backend is None else 2, num_gpus_per_learner=self.num_gpus)
        config.learners(local_gpu_idx=rank)
        with self.process_group(rank, port):
            learner = build_learner(config)
            record_gradients(learner)
            learner.update(make_batch(config, questions))
            [gradients] = learner.recorded
        return {name: gradient.cpu() for name, gradient in gradients.items()}

    @contextmanager
    def process_group(self, rank: int, port: int) -> Iterator[None]:
        if self.backend is None:
            yield
            return
        if self.num_gpus:
            torch.cuda.set_device(rank)
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group(self.backend, init_method=address, rank=rank, world_size=self.num_ranks)
        try:
            yield
        finally:
            dist.destroy_process_group()
