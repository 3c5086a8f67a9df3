"""Finds the prose of a file: comments, documentation and messages.

A parser for each language splits a text into comments and strings, and knows nothing else of the language.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass, field

# Placeholders for inline code and for addresses.
CODE, ADDRESS = "`code`", "address"

HASHES = {"toml", "conf", "yml", "service", "env"}
KINDS = {"rs": "c", "c": "c", "h": "c", "py": "python", "md": "markdown", "sh": "shell", **dict.fromkeys(HASHES, "settings")}
SHEBANG = re.compile(r"#!.*\b(python3?|bash|sh|awk)\b")

# Rust and C. `end_of_block` handles block comments, which nest in Rust.
C_TOKEN = re.compile(r"""
    (?P<line>//[^\n]*)
  | (?P<block>/\*)
  | \b[bc]?r(?P<hashes>\#*)"(?P<raw>.*?)"(?P=hashes)
  | "(?P<string>(?:\\.|[^"\\])*)"
  | '(?:\\(?:u\{[^}]*\}|x..|.)|[^\\'\n])'
""", re.X | re.S)
PYTHON_TOKEN = re.compile(r"""
    (?P<line>\#[^\n]*)
  | (?P<three>\"{3}|'{3})(?P<long>(?:\\.|.)*?)(?P=three)
  | "(?P<string>(?:\\.|[^"\\\n])*)"
  | '(?P<other>(?:\\.|[^'\\\n])*)'
""", re.X | re.S)
# A comment of a shell starts a word. Quotes within "$(...)" end the string early, which is harmless.
SHELL_TOKEN = re.compile(r"""
    (?P<line>(?:(?<=\s)|\A)\#[^\n]*)
  | <<-?\ ?["'\\]?(?P<mark>\w+)["']?[^\n]*\n(?P<document>.*?)^\s*(?P=mark)$
  | \\.
  | "(?P<string>(?:\\.|[^"\\])*)"
  | '(?P<other>[^']*)'
""", re.X | re.S | re.M)
# TOML, YAML, systemd units and similar files. Unquoted values are prose for some keys only.
SETTINGS_TOKEN = re.compile(r"""
    (?P<line>(?:(?<=\s)|\A)\#[^\n]*)
  | ^\s*(?:description|summary|Description)\s*[:=]\s*(?P<string>[^\n]+)
  | "(?P<other>(?:\\.|[^"\\\n])*)"
  | (?<=[\s\[=])'(?P<third>[^'\n]*)'
""", re.X | re.S | re.M)

LIST_ITEM = re.compile(r"(?:[-*+]|\d+[.)])\s+")
DRAWING = re.compile("[\u2500-\u257f]")
# A name and its explanation in two columns.
COLUMNS = re.compile(r"\S+(?: \S+){0,3} {2,}\S")
FENCE = re.compile(r"(?:```|~~~)")
INLINE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.S)
LINK = re.compile(r"\[([^][]*)\](?:\([^()\s]*(?:\([^()]*\))?[^()\s]*\)|\[[^][]*\])")
URL = re.compile(r"(?:https?|ftp|vfio-user|shm|udp)://\S+|</?[a-z][^>]*>")
# A string is a message if it has this many words.
WORDS_OF_MESSAGE = 3
WORD = re.compile(r"""["'(`]*[A-Za-z][A-Za-z'’-]*["'`),.:;!?]*""")
PLACEHOLDER, ESCAPE = re.compile(r"\{[^{}\s]*\}"), re.compile(r"\\[nrt]|\\$")
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|vs|cf|approx|resp|Fig|No|Sec|St|al|ff)\.$", re.IGNORECASE)
SENTENCE_END = re.compile(r"""[.!?]["'”’)\]*_]*\s+(?=["'“(\[*_]*[A-Z`\d])""")


@dataclass
class Paragraph:
    """Lines joined to one text, with the offset of each line."""

    kind: str
    text: str = ""
    starts: list = field(default_factory=list)
    lines: list = field(default_factory=list)

    def add(self, line, text):
        text = " ".join(text.split())
        if text:
            self.text += " " if self.text else ""
            self.starts.append(len(self.text))
            self.lines.append(line)
            self.text += text

    def line(self, offset):
        """Returns the line number of an offset."""
        return self.lines[max(bisect_right(self.starts, offset) - 1, 0)]

    def without_code(self):
        """Replaces inline code and addresses by placeholders and adjusts the offsets of lines."""
        for pattern, by in ((INLINE, CODE), (LINK, r"\1"), (URL, ADDRESS)):
            if not pattern.search(self.text):
                continue
            text, last, starts = "", 0, list(self.starts)
            for match in pattern.finditer(self.text):
                text += self.text[last:match.start()]
                new, last = match.expand(by), match.end()
                shift = len(new) - len(match.group())
                # A line that starts within the replaced text now starts after it.
                starts = [max(s + shift, len(text)) if old > match.start() else s for s, old in zip(starts, self.starts)]
                text += new
            self.text, self.starts = text + self.text[last:], starts
        return self

    def sentences(self):
        """Returns the offset and the text of each sentence."""
        begin, found = 0, []
        for match in SENTENCE_END.finditer(self.text):
            if not ABBREVIATION.search(self.text[begin:match.start() + 1]):
                found.append((begin, self.text[begin:match.end()].rstrip()))
                begin = match.end()
        if begin < len(self.text):
            found.append((begin, self.text[begin:].rstrip()))
        return found


def words(sentence):
    return sum(any(c.isalnum() for c in word) for word in sentence.split())


def kind_of(path, text):
    """Returns the key of the parser for a file, or None if the file is not checked."""
    name = path.rsplit("/", 1)[-1]
    if name == "Cargo.lock":
        return None
    if name == "Containerfile":
        return "shell"
    if "." in name and not name.startswith("."):
        return KINDS.get(name.rsplit(".", 1)[-1], "shell" if SHEBANG.match(text) else None)
    shebang = SHEBANG.match(text)
    return ("python" if shebang[1].startswith("python") else "shell") if shebang else None


def prose(numbered, kind):
    """Groups lines into paragraphs, one for each list item. Leaves out code, tables, drawings."""
    found, current, fenced = [], None, False
    for number, line in numbered:
        text = line.strip()
        if FENCE.match(text):
            fenced, current = not fenced, None
            continue
        if fenced:
            continue
        if not text or text.startswith("|") or DRAWING.search(text) or not any(c.isalnum() for c in text):
            current = None
            continue
        if text.startswith("#") and re.match(r"#+ ", text):
            heading = Paragraph("heading")
            heading.add(number, text.lstrip("#"))
            found.append(heading)
            current = None
            continue
        item = LIST_ITEM.match(text)
        if item or current is None or COLUMNS.match(text):
            current = Paragraph(kind)
            found.append(current)
        current.add(number, text[item.end():] if item else text)
    return found


def of_markdown(text):
    text = re.sub(r"<!--.*?-->", lambda match: "\n" * match.group().count("\n"), text, flags=re.S)
    return prose(enumerate(text.split("\n"), 1), "markdown")


class Comments:
    """Collects comments and joins those on successive lines with the same marker."""

    def __init__(self):
        self.found, self.block, self.key, self.last = [], [], None, 0

    def add(self, line, marker, text, alone):
        key = (marker, alone)
        if not alone or key != self.key or line != self.last + 1:
            self.flush()
        self.block.append((line, text))
        self.key, self.last = key, line

    def flush(self):
        if self.block:
            self.found += prose(self.block, "comment" if self.key[1] else "trailing")
        self.block, self.key = [], None


def string_paragraph(line, text, raw=False):
    """Returns a string as a paragraph, or None if it is not prose."""
    paragraph = Paragraph("message")
    for number, piece in enumerate(text.split("\n"), line):
        piece = PLACEHOLDER.sub("{}", piece)
        paragraph.add(number, piece if raw else ESCAPE.sub(" ", piece).replace('\\"', '"'))
    return paragraph if sum(bool(WORD.fullmatch(word)) for word in paragraph.text.split()) >= WORDS_OF_MESSAGE else None


def of_c(text):
    """Returns the comments and messages of Rust and C."""
    comments, messages, at = Comments(), [], 0
    lines = Lines(text)
    while match := C_TOKEN.search(text, at):
        at, begin = match.end(), match.start()
        line = lines.number(begin)
        alone = lines.begins(begin)
        if match["line"] is not None:
            marker = re.match(r"//[/!]?(?!/)|/+", match["line"]).group()
            comments.add(line, marker, match["line"][len(marker):], alone)
        elif match["block"]:
            at = end_of_block(text, at)
            comments.flush()
            body = text[begin + 2:at - 2].split("\n")
            comments.found += prose([(line + n, re.sub(r"^\s*[*!]+", "", piece)) for n, piece in enumerate(body)], "comment")
        elif match["raw"] is not None or match["string"] is not None:
            messages.append(string_paragraph(line, match["string"] if match["raw"] is None else match["raw"], match["raw"] is not None))
    comments.flush()
    return comments.found + [message for message in messages if message]


def end_of_block(text, at):
    """Returns the offset after a block comment, which may contain others."""
    depth = 1
    for match in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if match.group() == "/*" else -1
        if depth == 0:
            return match.end()
    return len(text)


def of_python(text):
    """Returns the comments, docstrings and messages of Python."""
    return hashed(text, PYTHON_TOKEN)


def of_shell(text):
    """Returns the comments and messages of a shell script."""
    return hashed(text, SHELL_TOKEN)


def of_settings(text):
    """Returns the comments and descriptions of a settings file."""
    return hashed(text, SETTINGS_TOKEN)


def hashed(text, tokens):
    comments, messages = Comments(), []
    lines = Lines(text)
    for match in tokens.finditer(text):
        line, alone, parts = lines.number(match.start()), lines.begins(match.start()), match.groupdict()
        if parts["line"] is not None:
            if not (line == 1 and parts["line"].startswith("#!")):
                comments.add(line, "#", parts["line"].lstrip("#"), alone)
        elif parts.get("document") is not None:
            # Here-documents are often configurations, whose comments are prose.
            first = lines.number(match.start("document"))
            for number, piece in enumerate(parts["document"].split("\n"), first):
                if piece.lstrip().startswith("#"):
                    comments.add(number, "#", piece.lstrip(" #"), True)
        elif parts.get("long") is not None and alone:
            # A triple-quoted string at the start of a line is a docstring.
            comments.flush()
            comments.found += prose([(line + n, piece) for n, piece in enumerate(parts["long"].split("\n"))], "comment")
        else:
            named = next((name for name in ("long", "string", "other", "third") if parts.get(name) is not None), None)
            if named:
                messages.append(string_paragraph(lines.number(match.start(named)), parts[named]))
    comments.flush()
    return comments.found + [message for message in messages if message]


class Lines:
    """Maps offsets to line numbers."""

    def __init__(self, text):
        self.text = text
        self.starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def number(self, offset):
        return bisect_right(self.starts, offset)

    def begins(self, offset):
        """Returns true if only spaces precede an offset in its line."""
        return not self.text[self.starts[self.number(offset) - 1]:offset].strip()


PARSERS = {"c": of_c, "python": of_python, "shell": of_shell, "settings": of_settings, "markdown": of_markdown}


def paragraphs(path, text):
    """Returns the paragraphs of a file, or None if the file is not checked."""
    kind = kind_of(path, text)
    return None if kind is None else [paragraph.without_code() for paragraph in PARSERS[kind](text)]
