"""Words that were given up: a reader of verbs, the RFCs or Linux would not know them.

docs/GLOSSARY.md has those in use. Only names count (identifiers, modules, files): in a sentence
some of these words are ordinary English.
"""

import os
import re

from tidy import functions

# Parts of names, and what to say instead.
GIVEN_UP = {
    "favour": "bias, biased lock", "favoured": "biased", "errand": "broker request",
    "envoy": "broker thread", "lane": "connected socket, queue",
    "adrift": "peer lost", "mason": "growth", "husk": "emptied mapping", "bracket": "access",
    "crowd": "admission", "parting": "detach grace", "mirror": "guest table",
    "book": "registry, tables", "door": "listener", "voice": "final acknowledgments",
    "lazy": "deferred",
}
# Names that are somebody else's.
FOREIGN = {"LazyLock", "RTLD_LAZY"}
# Modules that were named by no noun of their own.
MODULES = {"tree", "places", "lives", "home", "held", "elsewhere", "known", "lost", "outside"}
NAME = re.compile(r"[A-Za-z_]\w*")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
HELD_TO_IT = re.compile(r"^(crates|fuzz/harness|guest)/.*\.(rs|c|h)$")


def given_up(name):
    """The words of a name that were given up, in the singular."""
    if name in FOREIGN:
        return []
    parts = [part.lower() for part in PART.findall(name)]
    return [word for word in GIVEN_UP if word in parts or word + "s" in parts]


def check(files):
    """Names do not bring back words that were given up."""
    for path, text in files:
        if not HELD_TO_IT.match(path):
            continue
        stem = os.path.splitext(os.path.basename(path))[0]
        if given_up(stem) or ("/src/" in path and stem in MODULES):
            yield f"{path}: a name that was given up"
        code = functions.blank(text, "rust" if path.endswith(".rs") else "c")
        for number, line in enumerate(code.splitlines(), 1):
            for name in NAME.findall(line):
                for word in given_up(name):
                    yield f"{path}:{number}: {name}: rather {GIVEN_UP[word]}"


def self_test():
    """What the check must find: name, and whether it did."""
    def found(path, text=""):
        return bool(list(check([(path, text)])))

    return [
        ("a word that was given up is found in a name",
         found("crates/a/src/b.rs", "fn run_errands()")),
        ("so it is in a type", found("crates/a/src/b.rs", "struct FavouredGuard;")),
        ("and in a module's name", found("crates/a/src/lives.rs")),
        ("in a comment it is not", not found("crates/a/src/b.rs", "// Whoever opens the door.")),
        ("nor in a longer word", not found("crates/a/src/b.rs", "let doorbell = LazyLock::new();")),
    ]
