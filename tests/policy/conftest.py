"""The fixtures of tests about the model."""

from tests.helpers.model_fixtures import float64_norms, random_pass, tiny_folder

__all__ = ["float64_norms", "random_pass", "tiny_folder"]
