"""The declaration of an option, from which its keyword, its help, its row of the page and its checks follow."""

import copy
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar, cast

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.options.rules import Rule, did_you_mean, shown


class Reader(Enum):
    """The part of a run that reads an option; the values are words for when `evaluation_config` may set it.

    Attributes:
        ROLLOUT: the rollouts of training and those of evaluation, each with the value of its own configuration.
        SAMPLING: as `ROLLOUT`, but greedy decoding does not read it.
        FORKS: as `SAMPLING`, but nothing reads it where nothing forks.
        ENV_RUNNER: an env runner and its engine, when they start.
        SHARED: the learners and all engines, which must agree.
        TRAINING: the driver and the learners, from the configuration of training.
    """

    ROLLOUT = "yes"
    SAMPLING = "if it samples"
    FORKS = "if it forks"
    ENV_RUNNER = "with own env runners"
    SHARED = "no, it is shared"
    TRAINING = "no"


@dataclass(frozen=True, slots=True)
class Need:
    """A condition on a key and on others, each of which keeps its own rule.

    Attributes:
        words: they complete the sentence "key=value: ...", with other keys in braces.
        holds: the condition. It is not asked where nothing reads the key: an option of `Reader.FORKS` with
            `branching="never"`, one of `Reader.TRAINING` in evaluation.
        example: keys that break it in a configuration that is otherwise the default; a test tries it.
    """

    words: str
    holds: Callable[[AlgorithmConfig], bool]
    example: Mapping[str, Any]

    def sentence(self, key: str, config: AlgorithmConfig) -> str:
        """The error message, which says so where the value is the default."""
        value = getattr(config, key)
        default = " (default)" if value == getattr(type(config)(), key) else ""
        return f"{key}={shown(value)}{default}: {self.words.format_map(vars(config))}."


@dataclass(frozen=True, slots=True)
class Option:
    """A keyword of one of `ARPOConfig`'s methods and the attribute of the same name.

    Attributes:
        default: its value in a new configuration, or a function that makes it.
        doc: its meaning, for the help and the page.
        rule: the rule that a value must keep by itself.
        reader: the part of a run that reads it.
        needs: the conditions on it and other keys.
    """

    default: Any
    doc: str
    rule: Rule
    reader: Reader = Reader.ROLLOUT
    needs: tuple[Need, ...] = ()

    def new_value(self) -> Any:
        """The default, in a copy of its own."""
        return self.default() if callable(self.default) else copy.deepcopy(self.default)

    def is_read(self, config: AlgorithmConfig) -> bool:
        """Whether the rollouts of `config`, or its update, read it at all."""
        without_forks = self.reader is Reader.FORKS and config.branching == "never"
        return not (without_forks or (self.reader is Reader.TRAINING and config.in_evaluation))


@dataclass(frozen=True, slots=True)
class Method:
    """A method of `ARPOConfig` that sets options.

    Attributes:
        words: what it sets; the first line of its help.
        of_rllib: whether RLlib has a method of this name, whose keywords go through.
    """

    words: str
    options: Mapping[str, Option]
    of_rllib: bool = False


Function = TypeVar("Function", bound=Callable[..., Any])

#: Columns of a generated docstring.
WIDTH = 116


def sets(method: Method) -> Callable[[Function], Function]:
    """Makes the docstring, of the options with their defaults, and a sentence about a keyword that is not known."""

    def decorate(function: Function) -> Function:
        name = function.__name__
        rllibs = inspect.signature(getattr(AlgorithmConfig, name)).parameters if method.of_rllib else {}
        known = [*method.options, *rllibs]
        entries = [_entry(option, declared) for option, declared in method.options.items()]
        function.__doc__ = "\n".join([method.words, "", "Args:", *entries])

        @functools.wraps(function)
        def checked(self: AlgorithmConfig, **keywords: Any) -> Any:
            check_keywords(name, keywords, known)
            return function(self, **keywords)

        return cast(Function, checked)

    return decorate


def check_keywords(method: str, keywords: Iterable[str], known: Sequence[str]) -> None:
    """Raises a TypeError, with the nearest known name, if `method` does not have one of these keywords."""
    for key in keywords:
        if key not in known:
            raise TypeError(f"{method}: {key!r} is not a keyword of this method.{did_you_mean(key, known)}")


def _entry(name: str, option: Option) -> str:
    default = "" if callable(option.default) else f" ({option.default!r})"
    text = f"{name}{default}: {option.doc}"
    return textwrap.fill(text, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False)
