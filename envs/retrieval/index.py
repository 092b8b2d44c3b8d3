"""A lexical (BM25) index of passages, in memory or in a folder that any number of processes read.

`rllib-arpo index` builds such a folder.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.retrieval.documents import Document, check_readable, read_documents
from rllib_arpo.envs.support.texts import usual_letters

#: In an index folder: the file written last, and tantivy's own files.
INFO_FILE, TANTIVY_FOLDER = "index.json", "tantivy"
#: The version of the folder's layout and of the rule for words.
VERSION = 4
#: Memory of the writer of an index, in memory and in a folder: more memory makes fewer pieces to merge later.
HEAP_BYTES, FOLDER_HEAP_BYTES = 64 << 20, 256 << 20
#: Field -> the weight of its words: less for texts, which also name the titles of other passages.
_BOOSTS = {"title": 2.0, "text": 1.0}
#: The field with the passage as the model reads it.
_SHOWN = "shown"

_TOKENIZER = "words"
#: Runs of letters and digits; scripts that put no spaces between words are searched by their characters.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}"
_WORD = rf"[{_UNSPACED}]|[[\p{{Alphabetic}}\p{{N}}]--[{_UNSPACED}]]+"
#: 40 letters of up to four bytes.
_MAX_WORD_BYTES = 160


class SearchIndex:
    """Passages that can be searched; safe for many threads. The same index gives the same results for a query.

    Made by `build_in_memory` or `open_folder`.
    """

    def __init__(self, index: Any):
        # By default the index would watch its files for changes in a separate thread.
        index.config_reader("manual")
        index.reload()
        self._schema = index.schema
        self._searcher = index.searcher()
        self._analyzer = analyzer()
        self._analyzing = threading.Lock()
        self.num_documents: int = self._searcher.num_docs

    def search(self, query: str, top_k: int) -> list[tuple[int, str]]:
        """The best passages for the words of `query`, best first: (number of the passage, its title and text)."""
        from tantivy import Occur, Query

        with self._analyzing:
            words = self._analyzer.analyze(usual_letters(query))
        if not words:
            return []
        terms = [
            (Occur.Should, Query.boost_query(Query.term_query(self._schema, field, word, "freq"), boost))
            for word in words
            for field, boost in _BOOSTS.items()
        ]
        hits = self._searcher.search(Query.boolean_query(terms), limit=top_k, count=False).hits
        scored = [(score, self._searcher.doc(address)) for score, address in hits]
        # Passages of equal score come in the order in which they were added.
        scored.sort(key=lambda hit: (-hit[0], hit[1].get_first("row")))
        return [(found.get_first("row"), found.get_first(_SHOWN).decode()) for _, found in scored]


def build_in_memory(documents: Iterable[Document]) -> SearchIndex:
    """An index of the documents, in their order, in this process's memory (about 1 kB a passage)."""
    index = new_index(None)
    add_documents(index, documents, HEAP_BYTES)
    return SearchIndex(index)


def build_folder(files: Sequence[str | Path], output: str | Path) -> int:
    """Indexes the passages of `files` and returns their number; counts them on a terminal.

    The index is built in a folder of its own beside `output`, which is renamed at the end: however a build is
    interrupted, `output` is a whole index or does not exist. (A build that is killed leaves its folder, OUTPUT.*.)

    Raises:
        DataError: a file or a row does not fit (the message names both), there is no passage, or `output` exists.
    """
    from tqdm import tqdm

    output = Path(output)
    paths = [Path(file) for file in files]
    for path in paths:
        check_readable(path)
    if output.exists():
        raise DataError(f"{output}: exists; remove it, or choose another folder.")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{output.name}.", dir=output.parent) as folder:
        # The temporary folder itself is closed to other users.
        partial = Path(folder, output.name)
        (partial / TANTIVY_FOLDER).mkdir(parents=True)
        documents = tqdm((one for path in paths for one in read_documents(path)), "indexing", disable=None)
        number = add_documents(new_index(partial / TANTIVY_FOLDER), documents, FOLDER_HEAP_BYTES)
        if number == 0:
            raise DataError(f"{', '.join(map(str, paths)) or 'No file'}: there is no passage to index.")
        _finish(partial, {"version": VERSION, "num_passages": number, "files": [str(path) for path in paths]})
        partial.rename(output)
    return number


def _finish(partial: Path, info: dict[str, Any]) -> None:
    """Gives tantivy's files the usual read permissions of this process's files, and writes INFO_FILE."""
    info_file = partial / INFO_FILE
    info_file.write_text(json.dumps(info, indent=2) + "\n", encoding="utf-8")
    for file in (partial / TANTIVY_FOLDER).iterdir():
        if file.suffix == ".lock":
            file.unlink()
        else:
            file.chmod(info_file.stat().st_mode)


def open_folder(folder: str | Path) -> SearchIndex:
    """Opens an index that `build_folder` has finished. The folder may be read-only.

    Raises:
        DataError: see `read_info`; or a file of the index is broken.
    """
    import tantivy

    read_info(folder)
    # Tantivy locks a file beside the index to open it, which a read-only folder does not allow. When the index is open,
    # the files are mapped into memory, and the links to them are needed no more; tantivy may look at them once more.
    with tempfile.TemporaryDirectory(prefix="search-index-", ignore_cleanup_errors=True) as links:
        for file in Path(folder, TANTIVY_FOLDER).resolve().iterdir():
            Path(links, file.name).symlink_to(file)
        try:
            index = tantivy.Index.open(links)
            index.register_tokenizer(_TOKENIZER, analyzer())
            return SearchIndex(index)
        except (ValueError, OSError) as error:
            raise DataError(f"{folder}: the index is broken ({error}); build it anew.") from error


def read_info(folder: str | Path) -> dict[str, Any]:
    """The facts that `build_folder` wrote about an index: {"version", "num_passages", "files"}. Quick.

    Raises:
        DataError: the folder is not a finished index, or is one of another version.
    """
    try:
        info = json.loads(Path(folder, INFO_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        hint = "make one with rllib-arpo index --output FOLDER FILE..."
        raise DataError(f"{folder}: no finished search index ({error}); {hint}") from error
    if info.get("version") != VERSION:
        raise DataError(f"{folder}: a search index of version {info.get('version')}, not {VERSION}; build it anew.")
    return info


def index_marks(folder: str | Path) -> list[Path]:
    """Small files of a finished index that change when it is built anew."""
    return [Path(folder, INFO_FILE), Path(folder, TANTIVY_FOLDER, "meta.json")]


def new_index(folder: Path | None) -> Any:
    """An empty tantivy index in a folder, or in memory."""
    import tantivy

    builder = tantivy.SchemaBuilder()
    for field in _BOOSTS:
        builder.add_text_field(field, tokenizer_name=_TOKENIZER, index_option="freq")
    builder.add_unsigned_field("row", stored=True)
    builder.add_bytes_field(_SHOWN, stored=True)
    index = tantivy.Index(builder.build(), path=None if folder is None else str(folder))
    index.register_tokenizer(_TOKENIZER, analyzer())
    return index


def add_documents(index: Any, documents: Iterable[Document], heap_bytes: int) -> int:
    """Writes the documents and returns their number. One thread does it, so the index keeps their order."""
    import tantivy

    writer = index.writer(heap_size=heap_bytes, num_threads=1)
    number = 0
    try:
        for title, text in documents:
            searched = {"title": usual_letters(title), "text": usual_letters(text)}
            writer.add_document(tantivy.Document(row=number, **searched, **{_SHOWN: show(title, text).encode()}))
            number += 1
        writer.commit()
    except BaseException:
        writer.rollback()
        raise
    finally:
        # They would go on to write files.
        writer.wait_merging_threads()
    return number


def analyzer() -> Any:
    """The analyser that turns texts and queries into words: lower-case English stems."""
    import tantivy

    filters = tantivy.Filter.remove_long(_MAX_WORD_BYTES), tantivy.Filter.lowercase(), tantivy.Filter.stemmer("English")
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.regex(_WORD))
    for step in filters:
        builder = builder.filter(step)
    return builder.build()


def show(title: str, text: str) -> str:
    """A passage as the model reads it."""
    return ": ".join(part for part in (title, text) if part)
