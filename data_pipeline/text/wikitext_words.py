"""The words that decide which parts of wikitext are text (see `wikitext`): one table.

Names are in lower case, with spaces for underscores; one that ends in `*` stands for all names that
begin so, one that begins with `*` for all that end so. A pattern is what a template leaves in the
text: `{1}` is its first unnamed argument, `{-1}` the last, `{*}` all of them joined, `{text|1}` the
first of these that is not empty. A tuple has the patterns for one, two, … unnamed arguments.
"""

# ruff: noqa: RUF001  (words and signs of many languages)

from dataclasses import dataclass
from typing import Final

Pattern = str | tuple[str, ...]


@dataclass(frozen=True)
class LanguageWords:
    """What one language's Wikipedia calls what is not text."""

    closing: frozenset[str]  # headings of sections at the end of an article
    disambiguation: frozenset[str]  # templates of pages that only list articles
    files: frozenset[str]  # names of the namespace of files, old ones included
    categories: frozenset[str]


def _words(text: str) -> frozenset[str]:
    """Splits at commas and line ends."""
    return frozenset(word.strip() for line in text.strip().split("\n") for word in line.split(","))


def _all(text: str, pattern: Pattern) -> dict[str, Pattern]:
    return dict.fromkeys(_words(text), pattern)


# Tags of MediaWiki's extensions, whose content is not text; it ends at the first closing tag.
DROPPED_EXTENSIONS: Final = _words("""
    ref, references, gallery, math, chem, ce, score, timeline, imagemap, hiero, graph, section
    pre, syntaxhighlight, source, mapframe, maplink, categorytree, inputbox, templatestyles
    indicator, includeonly, templatedata, phonos, charinsert, rss, quiz, dynamicpagelist
""")
# Other tags whose content is not text. That of all others is; `br` is a space.
DROPPED_TAGS: Final = _words("table, ul, ol, dl, li")

# {{convert|5|to|10|km|mi}}: the values and their first unit, "5 to 10 km".
CONVERT: Final = "convert"
# {{as of|2014|5|lc=y}}: "as of 2014".
AS_OF: Final = "as of"
# {{formatnum:1000}}: what follows the colon.
AFTER_COLON: Final = ":"

KEPT_TEMPLATES: Final[dict[str, Pattern]] = {
    **_all("convert, cvt, conv", CONVERT),
    **_all("as of, asof", AS_OF),
    **_all("formatnum:*", AFTER_COLON),
    **_all(
        """
        nowrap, nobr, nobreak, nwr, j, small, smaller, big, bigger, larger, em, strong, sub, sup
        center, nobold, noitalic, normal, underline, mono, code, tt, kbd, samp, var, mvar
        smallcaps, sc, sc2, abbr, abbreviation, abbrv, tooltip, sic, not a typo, notatypo, typo
        as written, proper name, ill, interlanguage link, illm, vanchor, visible anchor, angbr
        angle bracket, iast, unicode, script/*, polytonic, hebrew, flag, flagcountry, flagu, nts
        formatnum, chem2, railgauge, track gauge
        """,
        "{1}",
    ),
    **_all("lang-*", "{1|text}"),
    **_all("lang, langx, script, color, colour, font color", "{2|text}"),
    **_all("transl, transliteration, resize", "{-1}"),
    **_all("chem, linktext", "{*}"),
    **_all("nihongo, nihongo2, nihongo3, nihongo krt", "{1|3|2}"),
    **_all(  # quotations are paragraphs
        """
        quote, quotation, blockquote, block quote, cquote, bquote, centered quote, poem quote
        poemquote
        """,
        "\n{text|quote|content|1}\n",
    ),
    **_all("music", "-{1}"),
    **_all("circa, c., ca.", "c. {1}"),
    **_all("floruit, fl.", "fl. {1}"),
    **_all("frac, fraction, sfrac", ("1/{1}", "{1}/{2}", "{1} {2}/{3}")),
    **_all("ship", "{1} {2}"),
    **_all("sclass, sclass2", "{1}-class {2}"),
    **_all("uss", "USS {1}"),
    **_all("hms", "HMS {1}"),
    **_all("ss", "SS {1}"),
    **_all("us$, usd", "US${1}"),
    **_all("gbp, £", "£{1}"),
    **_all("eur, €", "€{1}"),
    **_all("inr, indian rupee", "₹{1}"),
    # Templates that stand for a character.
    **_all("nbsp, space, spaces, thinsp, thin space, hair space, zwsp, wbr, shy", " "),
    **_all("ndash, en dash, endash, --", "–"),
    **_all("mdash, em dash, emdash, mdashb, ---", "—"),
    **_all("spaced ndash, spaced en dash, spndash, snd, snds, spnd", " – "),
    **_all("spaced mdash, spaced em dash", " — "),
    **_all("', apostrophe", "'"),
    **_all("'s", "'s"),
    **_all("' \"", "'\""),
    **_all("\" '", "\"'"),
    **_all("dot, ·, middot", " · "),
    **_all("times, ×", "×"),
    **_all("okina", "ʻ"),
    **_all("pi", "π"),
    **_all("=", "="),
}

# Templates that leave nothing. One that is in neither table leaves nothing, too, and is counted.
DROPPED_TEMPLATES: Final = (
    _words("""
        #*, cite*, citation, vcite*, harv*, sfn*, efn*, refn, rp, r, ref, ref label, note
        note label, reflist, refbegin, refend, notelist*, wikicite, webarchive, isbn, issn, oclc
        doi, arxiv, pmid, lccn
    """)  # references
    | _words("""
        *needed, *inline, *section, cn, fact, clarify, when, who, which, where, why, by whom, whom
        how, vague, dubious, disputed, verify source, better source, dead link, update after
        update, specify, refimprove, unreferenced, more citations*, more footnotes*, no footnotes
        multiple issues, cleanup*, globalize, tone, copy edit, original research, primary sources
        one source, technical, expert*, contradict, use *, pp-*, good article, featured article
        featured list, short description, engvarb, italic title, displaytitle*, defaultsort*
        lowercase title, bots, nobots, unreliable source?, unreliable source
    """)  # notes to readers and editors
    | _words("""
        main, main article, see also, further, further information, details*, about, for
        other uses, other people, other places, redirect*, distinguish, hatnote*, broader
        self reference, portal*, commons*, wiktionary*, wikiquote*, wikisource*, wikibooks*
        wikivoyage*, wikinews*, wikiversity*, wikispecies*, wikiatlas*, wikipedia*
        sister project*, sister links, subject bar, library resources box, authority control
        spoken wikipedia*, dmoz, official website, official, url, *topics, *topic, *navbox
        *sidebar, *footer, *-stub, navbox*, sidebar*, succession*, s-*, campaignbox*
        internet archive*, librivox*, gutenberg*, ol author, imdb*, youtube, cia world factbook*
        in our time
    """)  # links to other pages
    | _words("""
        div col, div col end, col-*, colbegin, colend, columns*, clear*, -, br, hlist, flatlist
        plainlist, endflatlist, endplainlist, unbulleted list, ubl, toc*, anchor, anchors, coord
        coordinates, stack*, infobox*, taxobox*, automatic taxobox, speciesbox, taxonbar, chembox*
        drugbox*, geobox*, geographic location, historical populations, us census population
        weather box, climate chart, location map*, bar box, graph*, pie chart, chart, chart/*
        clade*, familytree*, tree chart*, multiple image, double image, triple image, wide image
        tall image, css image crop, annotated image, listen, audio, quote box, side box
        external media, flagicon, flagdeco, flag icon, *icon, legend*, sort, dts, inflation*
        currentyear, currentmonth
    """)  # layout, boxes and figures
    | _words("""
        ipa*, respell, pronunciation*, math, tmath, val, nuclide*, su, physics particle
        birth date*, death date*, start date*, end date*, age*
    """)  # pronunciation, formulas and computed dates
)

# Options of an image, `[[File:a.jpg|thumb|left|Caption]]`, in the languages below.
IMAGE_OPTIONS: Final = _words("""
    thumb, thumbnail, frame, frameless, framed, left, right, center, none, upright
    mini, miniatur, rahmenlos, gerahmt, links, rechts, zentriert, hochkant
    vignette, cadre, sans_cadre, gauche, droite, centré, redresse
    miniatura, miniaturadeimagen, derecha, izquierda, centro, centrado, marco, sinmarco
    destra, sinistra, riquadrato, senza_cornice, miniaturadaimagem, direita, esquerda
    commoldura, semmoldura, miniatuur, gecentreerd, omkaderd, rechtop
    miniatyr, höger, vänster, centrerad, ramlös, inramad
    mały, prawo, lewo, centruj, bezramki, ramka
    мини, миниатюра, справа, слева, центр, обрамить, безрамки
    міні, мініатюра, праворуч, ліворуч, обрамити
    サムネイル, フレーム, フレームなし, 右, 左, 中央
    缩略图, 縮圖, 有框, 无框, 無框, 居中, 置中
""")

BY_LANGUAGE: Final[dict[str, LanguageWords]] = {
    "en": LanguageWords(
        _words("""
            see also, references, external links, external link, further reading, notes, footnotes
            notes and references, references and notes, bibliography, selected bibliography
            sources, citations, works cited, cited sources, references and sources
            notes and citations, publications
        """),
        _words("""
            disambiguation, disambig, disamb, dab, *disambiguation, hndis, geodis, schooldis
            mil-unit-dis, numberdis, mathdab, letter-numbercombdisambig
        """),
        _words("file, image"),
        _words("category"),
    ),
    "de": LanguageWords(
        _words("""
            siehe auch, literatur, weblinks, einzelnachweise, quellen, anmerkungen, fußnoten
            belege, nachweise, literatur und weblinks, quellen und literatur, weblinks und quellen
            schriften, werke
        """),
        _words("begriffsklärung"),
        _words("datei, bild"),
        _words("kategorie"),
    ),
    "fr": LanguageWords(
        _words("""
            voir aussi, notes et références, références, notes, liens externes, lien externe
            bibliographie, articles connexes, annexes, sources, publications, œuvres
        """),
        _words("homonymie, *homonymie, homonymes, patronyme, paronymie"),
        _words("fichier, image"),
        _words("catégorie"),
    ),
    "es": LanguageWords(
        _words("""
            véase también, referencias, notas, enlaces externos, bibliografía, notas y referencias
            fuentes, referencias y notas, lecturas adicionales, publicaciones, obras
        """),
        _words("desambiguación, desambig"),
        _words("archivo, imagen"),
        _words("categoría"),
    ),
    "it": LanguageWords(
        _words("""
            voci correlate, altri progetti, collegamenti esterni, note, bibliografia, fonti
            pubblicazioni, opere
        """),
        _words("disambigua"),
        _words("file, immagine"),
        _words("categoria"),
    ),
    "pt": LanguageWords(
        _words("""
            ver também, referências, ligações externas, notas, bibliografia, notas e referências
            fontes, leitura adicional, obras
        """),
        _words("desambiguação, desambig"),
        _words("ficheiro, imagem, arquivo"),
        _words("categoria"),
    ),
    "nl": LanguageWords(
        _words("zie ook, externe links, externe link, bronnen, referenties, noten, literatuur"),
        _words("dp, dpintro, *doorverwijspagina"),
        _words("bestand, afbeelding"),
        _words("categorie"),
    ),
    "sv": LanguageWords(
        _words("se även, referenser, externa länkar, källor, noter, litteratur, vidare läsning"),
        _words("förgrening, *förgrening, gren, betydelselista"),
        _words("fil, bild"),
        _words("kategori"),
    ),
    "pl": LanguageWords(
        _words("zobacz też, przypisy, bibliografia, linki zewnętrzne, uwagi, źródła"),
        _words("ujednoznacznienie"),
        _words("plik, grafika"),
        _words("kategoria"),
    ),
    "ru": LanguageWords(
        _words("см. также, примечания, ссылки, литература, источники, библиография, комментарии"),
        _words("неоднозначность, *неоднозначность, disambig, многозначность"),
        _words("файл, изображение"),
        _words("категория"),
    ),
    "uk": LanguageWords(
        _words("див. також, примітки, посилання, література, джерела, виноски"),
        _words("неоднозначність, *неоднозначність, disambig"),
        _words("файл, зображення"),
        _words("категорія"),
    ),
    "ja": LanguageWords(
        _words("関連項目, 脚注, 出典, 注釈, 参考文献, 外部リンク, 関連文献"),
        _words("aimai, 曖昧さ回避, 人名の曖昧さ回避, 地名の曖昧さ回避"),
        _words("ファイル, 画像"),
        _words("カテゴリ"),
    ),
    "zh": LanguageWords(
        _words("参见, 參見, 参考文献, 參考文獻, 外部链接, 外部連結, 注释, 註釋, 脚注, 延伸阅读"),
        _words("disambig, 消歧义, 消歧義, *disambig, *消歧义, *消歧義"),
        _words("文件, 檔案, 档案, 图像, 圖像, 图片, 圖片"),
        _words("分类, 分類"),
    ),
}
