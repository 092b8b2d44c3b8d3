"""What makes a module a recipe. Its own command line, studies and `rllib-arpo doctor` use the same three names.

parser                      its options, made by `recipe_parser`
make_model(args)            the folder or hub id of the model that it starts from; makes the model if need be
make_config(model, args)    the configuration of a run
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

#: Function of a recipe -> its arguments.
FUNCTIONS = {"make_model": ("args",), "make_config": ("model", "args")}


def load_recipe(name: str) -> ModuleType:
    """The recipe in a file ("folder/my_recipe.py") or in a module ("tuned_examples.trails_small_arpo").

    Raises:
        ValueError: there is no such file, or it is not a recipe.
        ImportError: there is no such module.
    """
    recipe = _load_file(name) if name.endswith(".py") else importlib.import_module(name)
    if not hasattr(recipe, "parser"):
        raise ValueError(f"The recipe {name!r} has no 'parser'.")
    for function, arguments in FUNCTIONS.items():
        found, wanted = getattr(recipe, function, None), f"{function}({', '.join(arguments)})"
        if not callable(found):
            raise ValueError(f"The recipe {name!r} has no {wanted}.")
        if len((signature := inspect.signature(found)).parameters) != len(arguments):
            raise ValueError(f"The recipe {name!r} must have {wanted}, not {function}{signature}.")
    return recipe


def _load_file(path: str) -> ModuleType:
    if not Path(path).is_file():
        raise ValueError(f"The recipe {path!r} does not exist.")
    # Prefix and hash keep it apart from other modules and recipes of the same name.
    place = hashlib.blake2b(bytes(Path(path).resolve()), digest_size=8).hexdigest()
    spec = importlib.util.spec_from_file_location(f"rllib_arpo_recipe_{Path(path).stem}_{place}", path)
    assert spec is not None and spec.loader is not None  # The name ends in ".py".
    module = importlib.util.module_from_spec(spec)
    # As an import does: dataclasses and pickle look for a class's module there.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module
