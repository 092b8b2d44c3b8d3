"""The interface of the sources that the search tool searches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping


class SearchSource(ABC):
    """Finds passages; a dataclass whose fields are its configuration."""

    def prepare(self) -> None:
        """Does the slow work of the first search in advance; blocks."""
        return None

    def inputs(self) -> Mapping[str, str]:
        """Path -> a mark of the content of every file that is searched."""
        return {}

    @abstractmethod
    async def search(self, query: str, top_k: int) -> list[str]:
        """The texts of the best passages, best first, at most `top_k`.

        Raises:
            TransientToolError: a repetition may help.
            ToolError: the query cannot be answered.
        """
