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
    """Words of one language's Wikipedia for parts of a page that are not text."""

    closing: frozenset[str]  # headings of sections at the end of an article, and parts of them
    joiners: frozenset[str]  # words that join such parts: "Notes and references"
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

# Options of an image, `[[File:a.jpg|thumb|left|Caption]]`, in the languages below; some may have a
# number: `upright=1.2`.
IMAGE_OPTIONS: Final = _words("""
    thumb, thumbnail, frame, frameless, framed, left, right, center, none, upright, border
    mini, miniatur, rahmenlos, gerahmt, links, rechts, zentriert, hochkant, ohne, rand
    vignette, cadre, sans_cadre, gauche, droite, centré, redresse, néant, bordure
    miniatura, miniaturadeimagen, derecha, izquierda, centro, centrado, marco, sinmarco
    ninguno, ninguna, borde, destra, sinistra, riquadrato, senza_cornice, nessuno, bordo
    miniaturadaimagem, direita, esquerda, commoldura, semmoldura, nenhum, borda
    miniatuur, gecentreerd, omkaderd, rechtop, geen, kaderloos
    miniatyr, höger, vänster, centrerad, ramlös, inramad, stående, ingen, kantlinje
    mały, prawo, lewo, centruj, bezramki, ramka, brak, tło
    мини, миниатюра, справа, слева, центр, обрамить, безрамки, без, граница
    міні, мініатюра, праворуч, ліворуч, обрамити, безрамки
    サムネイル, フレーム, フレームなし, 右, 左, 中央, なし, 右上, 境界, ボーダー
    缩略图, 縮圖, 有框, 无框, 無框, 居中, 置中, 无, 無, 边框, 邊框
""")
# Options that have a text: `alt=A cat`, `link=Cat`.
IMAGE_KEYS: Final = _words("""
    alt, link, page, class, lang, alternativtext, verweis, seite, klasse, sprache
    lien, classe, langue, enlace, vínculo, página, clase, idioma, ligação
    koppeling, verwijzing, pagina, taal, länk, sida, klass, strona
    альт, ссылка, страница, класс, язык, посилання, сторінка, клас, мова
    代替文, リンク, ページ, クラス, 言語, 替代, 替代文本, 替代文字, 链接, 鏈接, 連結, 页数, 頁數
    类, 類, 语言, 語言
""")

BY_LANGUAGE: Final[dict[str, LanguageWords]] = {
    "en": LanguageWords(
        _words("""
            see also, related articles, related pages
            references, reference, general references, cited references, references cited
            bibliographic references, additional references
            notes, note, footnotes, footnote, endnotes, explanatory notes
            sources, general sources, cited sources, sources cited, additional sources
            citations, inline citations, works cited, cited works, literature cited
            cited literature, bibliography, selected bibliography, publications
            further reading, additional reading
            external links, external link, external sources, links, web links
        """),
        _words("and, or"),
        _words("""
            disambiguation, disambig, disamb, dab, *disambiguation, hndis, geodis, schooldis
            mil-unit-dis, numberdis, mathdab, letter-numbercombdisambig
        """),
        _words("file, image"),
        _words("category"),
    ),
    "de": LanguageWords(
        _words("""
            siehe auch, einzelnachweise, einzelnachweis, nachweise, belege, referenzen
            anmerkungen, anmerkung, fußnoten, fussnoten, endnoten
            quellen, quellenangaben, quellenangabe, quellennachweise, quellennachweis
            quellenverzeichnis, internetquellen, onlinequellen, gedruckte quellen
            literatur, literaturverzeichnis, literaturhinweise, literaturangaben
            literaturauswahl, sekundärliteratur, weiterführende literatur, bibliographie
            bibliografie, schriften, werke, publikationen, veröffentlichungen
            weblinks, weblink, externe links, weiterführende links
        """),
        _words("und, sowie, oder"),
        _words("begriffsklärung"),
        _words("datei, bild"),
        _words("kategorie"),
    ),
    "fr": LanguageWords(
        _words("""
            voir aussi, voir également, articles connexes, article connexe, liens internes
            lien interne, références, référence, références bibliographiques
            références externes, notes, note, notes de bas de page, annexes, annexe
            sources, sources primaires, sources secondaires, sources bibliographiques
            bibliographie, bibliographie sommaire, bibliographie indicative
            orientation bibliographique, éléments bibliographiques, webographie, sitographie
            publications, œuvres, lectures complémentaires, pour en savoir plus
            pour approfondir, liens externes, lien externe, liens, sites externes
        """),
        _words("et, ou"),
        _words("homonyme, homonymes, *homonymie, patronyme, patronymie, paronymie, toponymie"),
        _words("fichier, image"),
        _words("catégorie"),
    ),
    "es": LanguageWords(
        _words("""
            véase también, vease también, véase además, ver también, artículos relacionados
            referencias, referencia, referencias bibliográficas, notas, nota, notas al pie
            notas a pie de página, fuentes, fuentes bibliográficas, bibliografía
            bibliografía adicional, bibliografía complementaria, bibliografía recomendada
            bibliografía consultada, publicaciones, obras, lectura adicional
            lecturas adicionales, lecturas recomendadas, lecturas complementarias
            para saber más, enlaces externos, enlace externo, enlaces, vínculos externos
        """),
        _words("y, e, o"),
        _words("desambiguación, desambiguacion, desambig, desamb"),
        _words("archivo, imagen"),
        _words("categoría"),
    ),
    "it": LanguageWords(
        _words("""
            voci correlate, voce correlata, vedi anche, altri progetti, riferimenti
            riferimenti bibliografici, note, nota, note esplicative, note bibliografiche
            annotazioni, fonti, fonti bibliografiche, bibliografia, bibliografia essenziale
            sitografia, pubblicazioni, opere, letture consigliate, letture di approfondimento
            ulteriori letture, collegamenti esterni, collegamento esterno, link esterni
        """),
        _words("e, ed, o"),
        _words("disambigua"),
        _words("file, immagine"),
        _words("categoria"),
    ),
    "pt": LanguageWords(
        _words("""
            ver também, veja também, artigos relacionados, referências, referência
            referências bibliográficas, referências gerais, notas, nota, notas de rodapé
            notas explicativas, fontes, fontes bibliográficas, bibliografia
            bibliografia adicional, bibliografia complementar, bibliografia consultada
            obras, publicações, leitura adicional, leituras adicionais, leitura complementar
            leitura recomendada, ligações externas, ligação externa, links externos
            link externo, ligações, links, páginas externas
        """),
        _words("e, ou"),
        _words("desambiguação, desambig"),
        _words("ficheiro, imagem, arquivo"),
        _words("categoria"),
    ),
    "nl": LanguageWords(
        _words("""
            zie ook, zie verder, bronnen, bronvermelding, bronvermeldingen, bronverwijzingen
            externe bronnen, geraadpleegde bronnen, referenties, referentie, noten, voetnoten
            voetnoot, eindnoten, aantekeningen, verwijzingen, literatuur, literatuurlijst
            literatuurverwijzingen, geraadpleegde literatuur, bibliografie, publicaties
            verder lezen, meer lezen, externe links, externe link, externe koppelingen
            externe koppeling, externe verwijzingen, weblinks
        """),
        _words("en, of"),
        _words("dp, dpintro, *doorverwijspagina"),
        _words("bestand, afbeelding"),
        _words("categorie"),
    ),
    "sv": LanguageWords(
        _words("""
            se även, se också, referenser, referens, källor, källhänvisningar, källhänvisning
            källförteckning, tryckta källor, otryckta källor, webbkällor, noter, fotnoter
            fotnot, slutnoter, anmärkningar, litteratur, litteraturförteckning
            referenslitteratur, bibliografi, vidare läsning, vidareläsning, ytterligare läsning
            externa länkar, extern länk, länkar, webblänkar
        """),
        _words("och, eller, samt"),
        _words("förgrening, *förgrening, gren, betydelselista"),
        _words("fil, bild"),
        _words("kategori"),
    ),
    "pl": LanguageWords(
        _words("""
            zobacz też, zobacz także, zobacz również, przypisy, przypis, uwagi, adnotacje
            objaśnienia, odnośniki, źródła, bibliografia, bibliografia uzupełniająca
            literatura przedmiotu, literatura uzupełniająca, literatura dodatkowa, publikacje
            linki zewnętrzne, link zewnętrzny, linki, odnośniki zewnętrzne
        """),
        _words("i, oraz, lub"),
        _words("ujednoznacznienie, disambig"),
        _words("plik, grafika"),
        _words("kategoria"),
    ),
    "ru": LanguageWords(
        _words("""
            см. также, смотри также, смотрите также, примечания, примечание, сноски
            комментарии, источники, источники информации, использованные источники
            список источников, литература, список литературы, использованная литература
            дополнительная литература, рекомендуемая литература, избранная библиография
            библиография, публикации, ссылки, внешние ссылки, внешние источники
        """),
        _words("и, или"),
        _words("""
            *неоднозначность, disambig, многозначность, однофамильцы, список однофамильцев, тёзки
            список тёзок, список полных тёзок
        """),
        _words("файл, изображение"),
        _words("категория"),
    ),
    "uk": LanguageWords(
        _words("""
            див. також, дивіться також, дивись також, примітки, примітка, виноски, зноски
            коментарі, джерела, джерела інформації, використані джерела, список джерел
            література, список літератури, використана література, додаткова література
            рекомендована література, бібліографія, публікації, посилання, зовнішні посилання
        """),
        _words("і, й, та, або"),
        _words("*неоднозначність, багатозначність, disambig, disambigg, disambign"),
        _words("файл, зображення"),
        _words("категорія"),
    ),
    "ja": LanguageWords(
        _words("""
            関連項目, 関連記事, 関連リンク, 脚注, 脚註, 注, 註, 注釈, 註釈, 注記, 註記, 補注, 補註
            出典, 典拠, 引用元, 情報源, 文献, 参考, 参考文献, 参照文献, 引用文献, 関連文献
            主要参考文献, 参考資料, 参考書籍, 参考図書, 参考サイト, 関連書籍, 関連図書, 読書案内
            外部リンク, 外部サイト
        """),
        _words("と, 及び, および, ならびに, 並びに"),
        _words("aimai, *曖昧さ回避"),
        _words("ファイル, 画像"),
        _words("カテゴリ"),
    ),
    "zh": LanguageWords(
        _words("""
            参见, 參見
            参看, 參看
            参阅, 參閱
            另见, 另見
            相关条目, 相關條目
            相关词条, 相關詞條
            相关链接, 相关连接, 相關連結, 相關鏈接, 相關連接
            参考, 參考
            参考文献, 參考文獻
            参考资料, 參考資料
            参考来源, 參考來源
            参考书目, 參考書目
            参考书籍, 參考書籍
            引用来源, 引用來源
            资料来源, 資料來源
            文献, 文獻
            注, 註
            注释, 注釋, 註釋
            注解, 註解
            附注, 附註
            备注, 備註, 備注
            脚注, 腳註, 腳注, 脚註
            注脚, 註腳
            尾注, 尾註
            延伸阅读, 延伸閱讀
            扩展阅读, 擴展閱讀
            进一步阅读, 進一步閱讀
            深入阅读, 深入閱讀
            相关阅读, 相關閱讀
            外部链接, 外部连接, 外部連結, 外部鏈接, 外部連接
        """),
        _words("与, 與, 和, 及, 以及"),
        _words("*disambig, *消歧义, *消歧義, *消歧义页, *消歧義頁"),
        _words("文件, 檔案, 档案, 图像, 圖像, 图片, 圖片"),
        _words("分类, 分類"),
    ),
}
