"""What the README and docs/ name: text, a vocabulary, the files of tasks."""

import re
from pathlib import Path


def write_text(folder: Path) -> None:
    """Python's help topics in the formats of WikiExtractor and of books, and a vocabulary."""
    from pydoc_data.topics import topics

    texts = [re.sub(r"[*`]+", "", text) for _, text in sorted(topics.items())]
    for name in ("wiki", "books"):
        (folder / name).mkdir()
    for number, part in enumerate((texts[:40], texts[40:])):
        articles = (
            f'<doc id="{number}{i}" url="https://example.org/{i}" title="Title {i}">\nTitle {i}\n\n'
            f"{' '.join(text.split())}\n</doc>\n"
            for i, text in enumerate(part)
        )
        (folder / f"wiki/wiki_0{number}").write_text("".join(articles))
        chapters = (f"## Chapter {i}\n\n{text}\n\n" for i, text in enumerate(part))
        (folder / f"books/Book {number}.md").write_text("".join(chapters))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = re.findall(r"[a-z]+", " ".join(texts).lower())
    entries = list(dict.fromkeys([*special, *map(chr, range(33, 127)), *words]))
    entries += [f"[unused{i}]" for i in range(30522 - len(entries))]
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n")


def write_tasks(folder: Path, sentences: list[str]) -> None:
    """Writes the files of the pages about tasks."""
    (folder / "SST-2").mkdir()
    rows = [f"{text}\t{len(text) % 2}\n" for text in sentences]
    for name, part in (("train", rows[:60]), ("dev", rows[60:80])):
        (folder / f"SST-2/{name}.tsv").write_text(f"sentence\tlabel\n{''.join(part)}")
    tests = (f"{i}\t{text}\n" for i, text in enumerate(sentences[80:]))
    (folder / "SST-2/test.tsv").write_text(f"index\tsentence\n{''.join(tests)}")
    (folder / "new.tsv").write_text("".join(f"{text}\n" for text in ("sentence", *sentences[:5])))
    mail = (f"{text}\t{'spam' if len(text) % 2 else 'inbox'}\n" for text in sentences)
    (folder / "mail.tsv").write_text(f"subject\tfolder\n{''.join(mail)}")
