"""Reads the pages of a MediaWiki XML dump as a stream; memory does not depend on its size.

The format: mediawiki.org/wiki/Help:Export. Of each page only some fields are kept, and of these no
more than an article may have.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final
from xml.etree.ElementTree import ParseError, XMLParser

from bert_jax.errors import UserError
from bert_jax.storage.reader_errors import XML_ERRORS, one_line

# $wgMaxArticleSize of Wikipedia, in bytes of UTF-8: longer pages cannot be saved there.
MOST_BYTES: Final = 2 << 20
_FIELDS: Final = ("title", "ns", "timestamp", "model", "format", "text", "namespace")
_FILES: Final = ("-2", "6", "14")  # keys of the namespaces Media, File and Category


@dataclass
class Page:
    """A page of a dump, with its latest revision: the last of those with the latest timestamp."""

    title: str = ""
    namespace: str = "0"
    text: str = ""
    redirects: bool = False
    model: str = ""  # of its content, such as "wikitext"; older dumps say neither this
    format: str = ""  # nor its MIME type
    too_long: bool = False  # its text is above MOST_BYTES, and "" here
    timestamp: str = ""  # of the revision, in ISO 8601 and UTC


@dataclass
class Pages:
    """A target of `XMLParser`, which calls its methods; `take` returns the finished pages."""

    files: set[str] = field(default_factory=set)  # names of the namespaces of files and categories
    _page: Page = field(default_factory=Page)
    _finished: list[Page] = field(default_factory=list)
    _pieces: list[str] | None = None  # of the field that is being read
    _length: int = 0
    _names_files: bool = False
    _has_root: bool = False
    _is_open: bool = False  # a page
    _revision: Page | None = None  # the fields of the revision that is being read
    _is_slot: bool = False  # content besides the main one of a revision (Help:Export, <content>)

    def take(self) -> list[Page]:
        finished, self._finished = self._finished, []
        return finished

    @property
    def title(self) -> str:
        """The title of the page that is being read, or of the last one."""
        return self._page.title

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        name = _local(tag)
        if not self._has_root and name != "mediawiki":
            raise ParseError(f"it begins with <{name}>, not with <mediawiki>")
        self._has_root = True
        if name == "page":
            if self._is_open:
                raise ParseError("a page inside a page")
            self._page, self._is_open = Page(), True
        elif name == "redirect":
            self._page.redirects = True
        elif name == "revision":
            self._revision = Page()
        elif name == "content":
            self._is_slot = True
        elif name in _FIELDS and not self._is_slot and self._is_wanted(name):
            self._pieces, self._length = [], 0
            self._names_files = attributes.get("key") in _FILES

    def data(self, text: str) -> None:
        if self._pieces is None:
            return
        self._length += len(text)
        if self._length <= MOST_BYTES:  # no fewer bytes than characters
            self._pieces.append(text)

    def end(self, tag: str) -> None:
        name = _local(tag)
        if name == "page":
            self._finished.append(self._page)
            self._is_open = False
        elif name == "revision":
            self._take_revision()
        elif name == "content":
            self._is_slot = False
        elif name in _FIELDS and self._pieces is not None:
            self._set(name, "".join(self._pieces))
            self._pieces = None

    def _is_wanted(self, name: str) -> bool:
        """Returns whether a field is where it has its meaning: an upload, too, has a timestamp."""
        return self._revision is not None or name != "timestamp"

    def _take_revision(self) -> None:
        """Gives the page the revision that ends, unless it has a later one."""
        revision, self._revision = self._revision, None
        if revision is None or revision.timestamp < self._page.timestamp:
            return
        page = self._page
        page.timestamp, page.text = revision.timestamp, revision.text
        page.model, page.format = revision.model, revision.format
        page.too_long = revision.too_long

    def _set(self, name: str, value: str) -> None:
        page = self._revision or self._page
        if name == "text":
            page.too_long = self._length > MOST_BYTES or len(value.encode()) > MOST_BYTES
            page.text = "" if page.too_long else value
        elif name == "title":
            self._page.title = value
        elif name == "ns":
            self._page.namespace = value.strip()
        elif name == "timestamp":
            page.timestamp = value.strip()
        elif name == "model":
            page.model = value.strip()
        elif name == "format":
            page.format = value.strip()
        elif self._names_files and value:
            self.files.add(value)

    def doctype(self, name: str, public: str | None, system: str | None) -> None:
        raise ParseError("it has a DOCTYPE, which no dump has")

    def close(self) -> None:
        pass


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def read_pages(where: object, chunks: Iterable[bytes], pages: Pages) -> Iterator[Page]:
    """Yields the pages of XML that comes in chunks.

    Args:
        where: the file, for messages.
        pages: collects what is outside the pages.

    Raises:
        UserError: the XML is damaged, or ends early.
    """
    parser = XMLParser(target=pages)
    try:
        for chunk in chunks:
            parser.feed(chunk)
            yield from pages.take()
        parser.close()
    except UserError:
        raise
    except XML_ERRORS as error:
        if not isinstance(error, ParseError):  # it has another encoding
            raise UserError(
                f"{where}: not XML in UTF-8 ({one_line(error)}); pass a pages-articles dump"
            ) from None
        at = f" at or after the page {pages.title!r}" if pages.title else ""
        raise UserError(
            f"{where}: not the XML of a complete dump{at} ({error}); download it again"
        ) from None
