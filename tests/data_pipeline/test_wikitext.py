"""The text of wikitext: what stays, what goes."""

import pytest

from bert_jax.data_pipeline.sources.wikiextractor import RULES
from bert_jax.data_pipeline.text.clean import clean
from bert_jax.data_pipeline.text.wikitext import UNKNOWN, is_disambiguation, plain_text
from bert_jax.data_pipeline.text.wikitext_words import BY_LANGUAGE


def text_of(wikitext: str, language: str = "en", files: tuple[str, ...] = ()) -> str:
    """The text after the rules for leftovers, as a build makes it."""
    return clean(plain_text(wikitext, language=language, files=files)[0], RULES)[0]


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        # Links and emphasis.
        ("See [[Lake Erie|the lake]] and [[Ohio]].", "See the lake and Ohio."),
        ("A [http://a.example page] [http://b.example].", "A page."),
        ("'''Bold''' ''italic'' '''''both''''' L''''Arc'.", "Bold \"italic\" both L'Arc'."),
        ("Up [[File:A.jpg|thumb|A [[cat]].]]down [[:File:B]].", "Up down File:B."),
        ("One.[[Category:Cats]] Two.[[de:Katze]]", "One. Two."),
        # Unbalanced apostrophes, as MediaWiki shows them.
        ("''Title'''s end is here.", '"Title\'"s end is here.'),
        ("''Title''<nowiki/>'s end is here.", '"Title"\'s end is here.'),
        ("L'''''Étranger'' is a'' book.", 'L"Étranger" is a" book."'),
        ("See ''the ''[[Sun|sun]]'''s'' light.", 'See "the "sun\'"s" light.'),
        ("An ''open mark.\nA ''closed'' one.", 'An "open mark."\nA "closed" one.'),
        ("Of ''{{frob}}'' it <nowiki>''is''</nowiki> said.", "Of it ''is'' said."),
        # Templates.
        ("It is {{convert|5|to|10|km|mi|abbr=on}} long.", "It is 5 to 10 km long."),
        ("He is {{convert|6|ft|2|in|cm}} tall.", "He is 6 ft 2 in tall."),
        (
            "The {{lang|fr|roi}} and {{lang-de|König}} of {{nowrap|5 W}}.",
            "The roi and König of 5 W.",
        ),
        ("{{nowrap|1=a=b}} is so.", "a=b is so."),
        (
            "{{As of|2014}} it was, {{as of|2015|lc=y}} it is.",
            "As of 2014 it was, as of 2015 it is.",
        ),
        ("{{transl|ar|ALA|al-Jazair}} is {{frac|1|2}} of {{frac|3}}.", "al-Jazair is 1/2 of 1/3."),
        ("He said:\n{{quote|I am, and was.|A. Man}}\nThen.", "He said:\nI am, and was.\nThen."),
        ("It was{{citation needed|date=May 2015}} here{{cn}}.", "It was here."),
        ("It ({{IPAc-en|a}}; born 1900) was.", "It (born 1900) was."),
        ("{{Infobox cat|name={{nowrap|Tom}}|x=[[a]]}}Tom is a cat.", "Tom is a cat."),
        # Tags, comments and tables.
        ("It is.<ref name=a>{{cite web|t=]]}}</ref> So<ref name=a /> it is.", "It is. So it is."),
        ("A <!-- not [[this --> cat.<br>A dog.", "A cat. A dog."),
        ("E <math>E = {{mc}}</math> is <b>bold</b> and H<sub>2</sub>O.", "E is bold and H2O."),
        ("Before.\n{| class=x\n! a\n|-\n| b || c\n|}\nAfter.", "Before.\nAfter."),
        ("A <nowiki>[[b]]</nowiki> c &lt; d&nbsp;e.", "A b c < d e."),
        ("<nowiki/>A cat<nowiki />s.", "A cats."),
        ("A.<ref>b</ref> C<nowiki/> d e.", "A. C d e."),
        # Blocks that are not closed.
        ("A <ref>that never closes, and more.", "A that never closes, and more."),
        ("A cat, a dog. <ref name=a that never ends\nAnd more.", "A cat, a dog.\nAnd more."),
        ("A cat. <!-- a note\nAnd all that follows.", "A cat."),
        ("A cat.<includeonly>\nAnd all that follows.", "A cat."),
        ("A <nowiki>''cat'' and <pre>a dog.", 'A "cat" and a dog.'),
        ("A <b>cat, a <div class=a>dog.\n<poem>A bird.", "A cat, a dog.\nA bird."),
        ("A cat.\n{| class=x\n! a\n|-\n| b || c\nA dog.", "A cat.\nA dog."),
        ("A <table><tr><td>cat, <ul><li>a dog.", "A cat, a dog."),
        ("A {{nowrap|cat and [[a dog|dog.", "A nowrap|cat and a dog|dog."),
        ("A <noinclude>cat, <onlyinclude>a dog.", "A cat, a dog."),
        # Lists, headings and sections.
        ("Some are:\n* a cat, a dog\n# a bird\n;a: b\nThat is all.", "Some are:\nThat is all."),
        ("He said:\n:I came, I saw, I won.", "He said:\nI came, I saw, I won."),
        ("A cat.\n== Its life ==\nIt lives.\n== See also ==\nA dog.", "A cat.\nIt lives."),
        ("A.\n== Notes ==\nx y.\n=== More ===\nz.\n== Life ==\nB.", "A.\nB."),
        ("__NOTOC__\nA cat lives.", "A cat lives."),
    ],
)
def test_what_stays_of_wikitext(wikitext: str, text: str) -> None:
    assert text_of(wikitext) == text


PAGES = {  # with the marks that each language's Wikipedia has
    "en": (
        "[[File:Cat.jpg|thumb|right|220px|A cat]]\nThe '''cat''' (; {{IPA|kæt}}) is an animal.",
        "The cat is an animal.",
    ),
    "de": (
        "__KEIN_INHALTSVERZEICHNIS__\n[[Datei:Katze.jpg|mini|hochkant|Eine Katze]]\n"
        "Die '''Hauskatze''' (; „{{lang|la|}}“) ist ein Tier.[[Kategorie:Katze|!]]",
        "Die Hauskatze ist ein Tier.",
    ),
    "fr": (
        "__AUCUNSOMMAIRE__\n[[Fichier:Chat.jpg|vignette|redresse|Un chat.]]\n"
        "'''''L'Étranger''''' « {{frob}} » est un roman d'''Albert Camus''.[[Catégorie:Roman]]",
        "L'Étranger est un roman d'\"Albert Camus\".",
    ),
    "es": (
        "__NOTDC__[[Archivo:Gato.jpg|miniaturadeimagen|Un gato.]]El '''gato''' ( , ) es un animal."
        "[[Categoría:Gatos]]",
        "El gato es un animal.",
    ),
    "it": (
        "__NOINDICE__\n[[Immagine:Gatto.jpg|miniatura|destra|Un gatto.]]\n"
        "L{{'}}'''aquila''' (, ) vola.[[Categoria:Aquile]]",
        "L'aquila vola.",
    ),
    "pt": (
        "__SEMTDC__\n[[Ficheiro:Gato.jpg|miniaturadaimagem|esquerda|Um gato.]]\n"
        "O '''gato''' (; 1900) é um animal.[[Categoria:Gatos]]",
        "O gato (1900) é um animal.",
    ),
    "nl": (
        "__GEENINHOUD__\n[[Bestand:Kat.jpg|miniatuur|rechtop|Een kat.]]\n"
        "De ''foto'''s zijn oud.[[Categorie:Katten]]",
        'De "foto\'"s zijn oud.',
    ),
    "sv": (
        "__INGENINNEHÅLLSFÖRTECKNING__\n[[Fil:Katt.jpg|miniatyr|höger|En katt.]]\n"
        "'''Katten''' (, ) är ett djur.[[Kategori:Katter]]",
        "Katten är ett djur.",
    ),
    "pl": (
        "__BEZSPISU__\n[[Plik:Kot.jpg|mały|prawo|Kot.]]\n"
        "'''Kot''' („”, ) to zwierzę.[[Kategoria:Koty]]",
        "Kot to zwierzę.",
    ),
    "ru": (
        "__БЕЗ_ОГЛАВЛЕНИЯ__\n[[Файл:Кот.jpg|мини|справа|200пкс|Кот.]]\n"
        "'''Кот''' ({{lang|la|}}; «») — животное.[[Категория:Коты]]",
        "Кот — животное.",
    ),
    "uk": (
        "__БЕЗ_ЗМІСТУ__\n[[Зображення:Кіт.jpg|міні|праворуч|Кіт.]]\n"
        "'''Кіт''' (, ) — тварина.[[Категорія:Коти]]",
        "Кіт — тварина.",
    ),
    "ja": (
        "__目次非表示__\n[[ファイル:猫.jpg|サムネイル|右|猫。]]\n"
        "'''猫'''（ねこ、{{lang|en|}}、）は「{{frob}}」動物である。[[Category:猫|ねこ]][[カテゴリ:猫]]",
        "猫（ねこ）は動物である。",
    ),
    "zh": (
        "__無目錄__\n-{H|zh-cn:数据;zh-tw:資料;}-[[檔案:貓.jpg|縮圖|貓。]]\n"
        "'''貓'''（；{{lang|en|cat}}），又稱-{zh-hans:家猫;zh-hant:家貓}-，"
        "是[[动物|-{A|zh-tw:動物; zh-cn:动物}-]]。-{程}-《{{frob}}》說。[[分類:貓]]",
        "貓（cat），又稱家猫，是动物。程說。",
    ),
}


@pytest.mark.parametrize("language", BY_LANGUAGE)
def test_a_page_of_every_language(language: str) -> None:
    wikitext, text = PAGES[language]
    assert text_of(wikitext, language) == text


def test_words_of_another_language() -> None:
    german = "Eine Katze.[[Datoteka:A.jpg|mini|Sie.]]\n== Weblinks ==\nMehr hier."
    assert text_of(german, "de", files=("Datoteka",)) == "Eine Katze."
    assert text_of("Ein Haus.[[Bild:A.jpg|Es.]]", "de") == "Ein Haus."
    assert is_disambiguation("* a\n{{Begriffsklärung}}", "de")


@pytest.mark.parametrize(
    ("wikitext", "expected"),
    [
        ("* a\n{{disambiguation}}", True),
        ("* a\n{{Disambig|geo}}", True),
        ("{{hndis|Doe, John}}", True),
        ("A{{disambiguation needed|date=May 2015}} b.", False),
        ("{{disambiguous}}", False),
    ],
)
def test_disambiguation_pages(wikitext: str, expected: bool) -> None:
    assert is_disambiguation(wikitext, "en") is expected


@pytest.mark.parametrize(
    ("language", "template"),
    [
        ("zh", "消歧义页"), ("zh", "消歧義頁"), ("zh", "人名消歧義"), ("uk", "DisambigG"),
        ("uk", "DisambigN"), ("ru", "Однофамильцы"), ("ja", "企業名の曖昧さ回避"),
        ("fr", "Toponymie"),
    ],
)  # fmt: skip
def test_disambiguation_pages_of_other_languages(language: str, template: str) -> None:
    assert is_disambiguation(f"* a\n{{{{{template}}}}}", language)


@pytest.mark.parametrize(
    "options",
    [
        "thumb|lien=Chat", "mini|verweis=Katze", "мини|альт=Кот на окне", "слева|ссылка=Кот",
        "缩略图|链接=猫", "miniatuur|geen", "mały|brak", "miniatura|ninguno", "alt=A cat",
        "hochkant=1.2", "link=|left", "border",
    ],
)  # fmt: skip
def test_options_of_an_image_that_wikiextractor_leaves_go(options: str) -> None:
    assert clean(f"{options}|A cat sits.", RULES)[0] == "A cat sits."
    assert clean(f"See [[File:A.jpg|{options}|a cat]].", RULES)[0] == "See a cat."


def test_unknown_templates_are_counted_by_name() -> None:
    counts = plain_text("{{Frob|a}} {{frob_ }} {{cite web|x}} {{nowrap|b}}", language="en")[1]
    assert counts == {f"{UNKNOWN}frob": 2}


@pytest.mark.parametrize(
    ("language", "titles"),
    [
        ("en", "Notes, citations, and references · Sources & further reading · Reference · Links"),
        ("de", "Einzelnachweise und Anmerkungen · Literaturhinweise · Weblinks, Quellenangaben"),
        ("fr", "Notes, sources et références · Référence · Voir également · Webographie"),
        ("es", "Referencias y enlaces externos · Lectura adicional · Ver también"),
        ("it", "Note e riferimenti · Sitografia · Vedi anche · Bibliografia e fonti"),
        ("pt", "Referências bibliográficas · Links externos · Notas de rodapé · Fontes e notas"),
        (
            "nl",
            "Bronnen, noten en/of referenties · Bronvermelding · Voetnoten · Externe koppelingen",
        ),
        ("sv", "Källhänvisningar · Fotnoter · Källor och litteratur · Se också"),
        ("pl", "Przypisy i bibliografia · Zobacz także · Literatura uzupełniająca"),
        ("ru", "Примечания и ссылки · Сноски · Список литературы · Источники, комментарии"),
        ("uk", "Зноски · Джерела та література · Зовнішні посилання · Примітки й посилання"),
        (
            "ja",
            "注 · 註 · 脚註 · 注釈・出典 · 出典・脚注 · 参考資料 · 脚注と参考文献 · 出典及び注釈",
        ),
        ("zh", "参考资料 · 參考資料 · 外部連接 · 延伸閱讀 · 腳註 · 註解 · 资料来源 · 資料來源"),
        ("zh", "相关条目 · 相關條目 · 参考书目 · 參考書目 · 注释与参考文献 · 註釋及參考資料"),
    ],
)
def test_closing_sections_of_every_language(language: str, titles: str) -> None:
    for title in titles.split(" · "):
        for heading in (title, f"'''{title}:'''"):
            assert text_of(f"A b.\n== {heading} ==\nC d e.", language) == "A b.", title


@pytest.mark.parametrize(
    ("language", "title"),
    [
        ("en", "Notes and life"), ("en", "And"), ("en", "/"), ("en", "Landnotes"),
        ("de", "Leben und Werke"), ("ja", "と"), ("ja", "注と人"), ("zh", "和平"),
    ],
)  # fmt: skip
def test_other_sections_stay(language: str, title: str) -> None:
    assert text_of(f"A b.\n== {title} ==\nC d e.", language) == "A b.\nC d e."
