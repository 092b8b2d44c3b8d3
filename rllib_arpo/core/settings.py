"""Takes from the whole configuration what one part of the package reads."""

from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def settings_from(kind: type[T], config: object, **computed: Any) -> T:
    """Makes a value of the dataclass `kind`.

    Args:
        config: has an attribute for every field that is not in `computed`, under the field's name.
        computed: the values of the other fields.
    """
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: computed[name] if name in computed else getattr(config, name) for name in names})
