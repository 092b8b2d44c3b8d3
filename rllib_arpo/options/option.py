"""`Option` declares an option: its keyword, its help, its row in docs/settings.md and its checks follow from that."""

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.options.rules import Rule, shown


class Reader(Enum):
    """The part of a run that reads an option. The values say when `evaluation_config` may set it.

    Attributes:
        ROLLOUT: training and evaluation each read it from their own configuration.
        SAMPLING: like `ROLLOUT`, but greedy decoding does not read it.
        FORKS: like `SAMPLING`, but only a rollout that forks reads it.
        ENV_RUNNER: an env runner and its engine read it when they start.
        SHARED: the learners and all engines read it, and must agree.
        TRAINING: the driver and the learners read it from the training configuration.
    """

    ROLLOUT = "yes"
    SAMPLING = "if it samples"
    FORKS = "if it forks"
    ENV_RUNNER = "with own env runners"
    SHARED = "no, shared"
    TRAINING = "no"


@dataclass(frozen=True, slots=True)
class Need:
    """A condition on a key together with other keys; each key also has a rule for itself.

    Attributes:
        words: they complete the sentence "key=value: ..."; other keys are in braces.
        holds: tests the condition. It is called only where the key is read: not for `Reader.FORKS` with
            `branching="never"`, and not for `Reader.TRAINING` in evaluation.
        example: changes of the default configuration that break the condition; a test tries them.
    """

    words: str
    holds: Callable[[AlgorithmConfig], bool]
    example: Mapping[str, Any]

    def sentence(self, key: str, config: AlgorithmConfig) -> str:
        """The error message; it marks a value that is the default."""
        value = getattr(config, key)
        default = " (default)" if value == getattr(type(config)(), key) else ""
        return f"{key}={shown(value)}{default}: {self.words.format_map(vars(config))}."


@dataclass(frozen=True, slots=True)
class Option:
    """A keyword of one of `ARPOConfig`'s methods, and the attribute of the same name.

    Attributes:
        default: its value in a new configuration.
        doc: its meaning, for the help and for docs/settings.md.
        rule: the rule for its value alone.
        reader: the part of a run that reads it.
        needs: the conditions on it together with other keys.
    """

    default: Any
    doc: str
    rule: Rule
    reader: Reader
    needs: tuple[Need, ...]

    def is_read(self, config: AlgorithmConfig) -> bool:
        """Whether the rollouts of `config`, or its update, read it at all."""
        without_forks = self.reader is Reader.FORKS and config.branching == "never"
        return not (without_forks or (self.reader is Reader.TRAINING and config.in_evaluation))


def option(default: Any, doc: str, rule: Rule, reader: Reader = Reader.ROLLOUT, *needs: Need) -> Option:
    """Declares an option; the arguments are the attributes of `Option`."""
    return Option(default, doc, rule, reader, needs)


@dataclass(frozen=True, slots=True)
class Method:
    """A method of `ARPOConfig` that sets options.

    Attributes:
        words: the first line of its help.
        of_rllib: whether RLlib has a method of this name, which gets all other keywords.
    """

    words: str
    options: Mapping[str, Option]
    of_rllib: bool = False


Function = TypeVar("Function", bound=Callable[..., Any])

#: Columns of a generated docstring.
WIDTH = 116


def sets(method: Method) -> Callable[[Function], Function]:
    """Gives a method its docstring, which lists the options with their defaults."""

    def decorate(function: Function) -> Function:
        entries = [_entry(option, declared) for option, declared in method.options.items()]
        function.__doc__ = "\n".join([method.words, "", "Args:", *entries])
        return function

    return decorate


def _entry(name: str, option: Option) -> str:
    text = f"{name} ({option.default!r}): {option.doc}"
    return textwrap.fill(text, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False)
