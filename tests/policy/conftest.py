"""The fixtures of tests about the model."""

from tests.helpers.model_fixtures import a_block_per_chain, compiler, float64_casts, random_pass, tiny_folder

__all__ = ["a_block_per_chain", "compiler", "float64_casts", "random_pass", "tiny_folder"]
