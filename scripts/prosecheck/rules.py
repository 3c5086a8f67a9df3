"""The rules of the style sheet, as one table.

A row is a name, a pattern, the better word, the reason, and a pattern of good English that is no finding.
Patterns match the text of a paragraph as one line, without inline code and addresses. They ignore case.
"""

import re
from dataclasses import dataclass

# Words of a sentence: the maximum, and the limit of a file's average.
LONGEST_SENTENCE = 40
MEAN_SENTENCE = 20
# Files with fewer sentences have no meaningful average.
ENOUGH_SENTENCES = 8
# The width of rustfmt.toml.
COMMENT_COLUMNS = 110

PEOPLE = (r"(?:persons?|people|users?|operators?|administrators?|admins?|engineers?|developers?|readers?|authors?|writers?|attackers?"
          r"|maintainers?|reviewers?|colleagues?|customers?|anyone|anybody|someone|somebody|everyone|everybody)")
ADDRESSEES = r"(?:the |an? |your |its )?" + PEOPLE
# Verbs that follow "has the kernel ...".
VERBS = r"(?:do|send|make|write|run|forward|take|say|drop|answer|wait|keep|read|look|give|find|use|stop|ask|begin|end|go|come|be)"

# Name, pattern, better, why, exceptions.
TABLE = [
    ("tell", r"\b(?:tells?|telling|told)\b", "report, notify, show, distinguish", "a private word for many things", None),
    ("anew", r"\banew\b", "again, re-", "archaic", None),
    ("befall", r"\bbef(?:alls?|ell|allen)\b", "happen to", "archaic", None),
    ("who", r"\bwho(?:m|ever|so)?\b", "name the actor; that (for a host)", "a host is a thing; a clause is no subject",
     PEOPLE + r",? who\b|\bwho-has\b"),
    ("what-clause", r"^(?:What|Whatever|Whichever|That which|Which)\b[^?]*[.:;]$", "the noun that it stands for",
     "a clause is no subject and no summary", None),
    ("so-many", r"\b(?:so|as) many\b", "at most N, the same number of", "clumsy", None),
    ("beside", r"\bbeside\b", "compared with, next to, as well as", "archaic", None),
    ("asked-of", r"\basked of\b", "requested from", "archaic", None),
    ("ask", r"\bask(?:s|ed|ing|ers?)?\b(?! of\b)", "query, request, require", "the protocols' word is query or request",
     r"\bask(?:s|ed|ing)? " + ADDRESSEES + r"\b"),
    ("has-do", r"\b(?:has|have|had|having) (?:(?:it|them) " + VERBS + r"|the [\w-]+ " + VERBS
     + r" (?:the|an?|its|all|it|them|nothing|no|to))\b", "make, let, request", "'has X do Y' hides the action", None),
    ("is-to", r"\b(?:is|are|was|were) to (?!(?:the|an?|its|their|each|all|any|both|this|that|one|other|another|\d)\b)[a-z]+",
     "must, should, will; the imperative", "the obligation is not clear",
     r"\b(?:aims?|goals?|purpose|tasks?|job|idea|remedy|fix|alternative|answer|way|reason|solution|option) (?:is|are|was|were) to\b"),
    ("fronted", r"^Of (?!course\b)[^?]*", "subject first, then the verb", "topic fronting", None),
    ("stands", r"\b(?:stands?|stood|standing) (?:on|at|there|beside|in(?! for\b))\b", "uses, depends on, is in",
     "a metaphor for several relations", None),
    ("by-itself", r"\b(?:by|of) (?:itself|themselves)\b", "automatically, alone, separately", "vague filler", None),
    ("turn", r"\b(?:an?|each|every|one|its|this|that|per|the|next|last|first|same|many|further|two|three|\d+) turns?\b",
     "iteration", "the loop's word", r"\bthe turn of the (?:year|century)\b"),
    ("rest", r"\b(?:(?:to|may|can|will|at) rest|rests|rested|resting|naps?|napping)\b", "idle, sleep, wait", "the worker's state is idle",
     r"\brests? (?:with|of)\b"),
    ("figure", r"\bfigures?\b", "metric, value, number", "the field's word", r"\bfigures? (?:out|\d+|[A-Z]-?\d+)\b|\bfigures\.py\b"),
    ("place", r"\b(?:an?|the|its|their|each|every|this|that|no|one|first|next|last|free|another|many|other|own|these|\d+) places?\b",
     "slot, index, position, location; instead", "the field's word", r"\bthe first place\b|\bin the places? where\b"),
    ("way", r"\b(?:on (?:its|the|their|a) ways?|both ways|either way|(?:its|their|own|short|long|slow|fast) ways?"
     r"|the other way(?! (?:a?round)\b))", "path, direction", "the field's word", r"\bin (?:its|their) own ways?\b"),
    ("words", r"\bthe (?:further |other |same )?words (?:after|behind|that follow)\b|\b(?:command|option)(?:'s|s'|s)? words?\b"
     r"|\bwords? of (?:the |a |its )?(?:commands?|options?)\b", "arguments", "a command has arguments", None),
    ("ends", r"\b(?:gateways?|programs?|process(?:es)?|daemons?|workers?|threads?) (?:ends?|ended)\b(?! (?:with|in|at|on|up|there)\b)",
     "exit, stop", "a process exits", None),
    ("percent", r"\b\d+ of (?:100|a hundred)\b", "%", "not idiomatic", None),
    ("laboratory", r"\blaborator(?:y|ies)\b", "virtual machines (vmlab), testbed", "one word for two things", None),
    ("measured", r"\b\d+(?:\.\d+)? (?:instructions?|cycles?|ns|nanoseconds) (?:fewer|less|more|faster|slower)\b",
     "(to the commit's body)", "measurements do not belong in comments", None),
]


@dataclass(frozen=True)
class Rule:
    """A compiled row of the table."""

    name: str
    pattern: re.Pattern
    better: str
    why: str
    fine: re.Pattern | None

    def matches(self, text):
        """Returns the offset and the text of each match."""
        found = [(m.start(), m.group()) for m in self.pattern.finditer(text)]
        if not found or self.fine is None:
            return found
        allowed = [m.span() for m in self.fine.finditer(text)]
        return [(at, what) for at, what in found if not any(begin <= at < end for begin, end in allowed)]


def compiled(pattern, flags=re.IGNORECASE):
    return re.compile(pattern, flags) if pattern else None


# Rules on the beginning of a sentence.
BY_SENTENCE = ("what-clause", "fronted")
# Rules that apply to comments only.
BY_COMMENT = ("measured",)
RULES = [Rule(name, compiled(pattern, 0 if name in BY_SENTENCE else re.IGNORECASE), better, why, compiled(fine))
         for name, pattern, better, why, fine in TABLE]
OF_PARAGRAPHS = [rule for rule in RULES if rule.name not in BY_SENTENCE]
OF_SENTENCES = [rule for rule in RULES if rule.name in BY_SENTENCE]
# Rules on lengths: the limit and the reason.
LENGTHS = {
    "sentence": (f"at most {LONGEST_SENTENCE} words", "one fact a sentence"),
    "mean": (f"below {MEAN_SENTENCE} words a sentence on average in a file", "short sentences read faster"),
    "columns": (f"at most {COMMENT_COLUMNS} columns", "comments keep the width of the code"),
}
NAMES = [*(rule.name for rule in RULES), *LENGTHS]
# Matches if any rule of paragraphs matches: most paragraphs break none.
ANY = re.compile("|".join(f"(?:{rule.pattern.pattern})" for rule in OF_PARAGRAPHS), re.IGNORECASE)
