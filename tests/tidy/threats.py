"""The tests that THREAT-MODEL.md names: each row of its tables names one, and all of them exist.

A row's last cell holds, between backquotes,
- `crate::test`: a function of that crate's tests, or of the driver's (`driver::test`);
- `stage: words`: words of a test of that stage of tests/run, as they stand in its source;
- `fuzz: target`: a fuzz target that has a corpus, which `make test` replays;
or "by inspection:" and the path of what is to be read.
"""

import os
import re

DOCUMENT = "docs/THREAT-MODEL.md"
# First cells of tables that say nothing of threats.
OTHER_TABLES = ("party",)
# Where the tests of a stage are, if not in the folder that its command is in.
FOLDERS = {"verify": ["tests/verify", "tests/clients"], "clients": ["tests/clients"],
           "driver": ["guest/tests"]}
STAGE = re.compile(r'Stage\("([a-z-]+)"(.*?)(?=Stage\(|\Z)', re.DOTALL)
COMMAND = re.compile(r'\["(tests/[a-z]+)/')
SPAN = re.compile(r"`([^`]+)`")


def cells(line):
    """The cells of a table's row."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows(text):
    """Number, cells and column titles of each row of the tables of threats."""
    titles = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            titles = None
        elif titles is None:
            titles = cells(line)
        elif not set(line) <= set("|-: ") and titles[0] not in OTHER_TABLES:
            yield number, cells(line), titles


def folders(stages):
    """The folders of each stage, by the list of stages' source."""
    found = dict(FOLDERS)
    for name, rest in STAGE.findall(stages):
        command = COMMAND.search(rest)
        if command and name not in found:
            found[name] = [command[1]]
    return found


class Tree:
    """What of the tree is looked at: texts by path."""

    def __init__(self, files):
        self.files = dict(files)
        self.stages = folders(self.files.get("tests/lib/stages.py", ""))

    def under(self, folder):
        """The texts of the files in a folder."""
        return (text for path, text in self.files.items() if path.startswith(folder + "/"))

    def has_function(self, crate, name):
        """Whether a crate, or the driver, has a function of this name among its tests."""
        if crate == "driver":
            return any(re.search(rf"\b{name}\(void\)", text) for text in self.under("guest/tests"))
        test = re.compile(rf"(#\[test\]|proptest!)(?s:.*?)\bfn {name}\(")
        return any(test.search(text) for text in self.under(f"crates/{crate}"))

    def has_words(self, stage, words):
        """Whether a stage's tests hold these words."""
        return any(words in text for folder in self.stages.get(stage, [])
                   for text in self.under(folder))

    def knows(self, reference):
        """Whether what a reference names is there."""
        if found := re.fullmatch(r"fuzz: ([a-z]+)", reference):
            path = f"fuzz/fuzz_targets/{found[1]}.rs"
            replayed = f'"{found[1]}"'
            return path in self.files and any(
                "replay" in text and replayed in text for text in self.under("crates"))
        if found := re.fullmatch(r"([a-z-]+)::([a-z0-9_:]+)", reference):
            return self.has_function(found[1], found[2].split("::")[-1])
        if found := re.fullmatch(r"([a-z-]+): (.+)", reference):
            return self.has_words(found[1], found[2])
        return False


def problems(text, tree):
    """What is wrong with the document: line and what."""
    for number, row, titles in rows(text):
        if titles[-1] != "test" or len(row) != len(titles):
            yield number, "a row without a column for its test"
            continue
        named = SPAN.findall(row[-1])
        if not named:
            yield number, f"no test: {row[0][:60]}"
        for reference in named:
            inspected = "by inspection" in row[-1] and reference in tree.files
            if not inspected and not tree.knows(reference):
                yield number, f"there is no {reference}"


def check(files):
    """Each row of THREAT-MODEL.md names a test that exists."""
    tree = Tree(files)
    for number, what in problems(tree.files[DOCUMENT], tree):
        yield f"{DOCUMENT}:{number}: {what}"


def self_test():
    """What the check must find: name, and whether it did."""
    files = {
        "tests/lib/stages.py": 'Stage("kill", "it", ["tests/kill/run"])',
        "tests/kill/run": 'yield "one dies"',
        "crates/a/src/b.rs": "fn quiet() {}\n#[test]\nfn loud() {}\n",
        "fuzz/fuzz_targets/c.rs": "",
        "crates/a/tests/corpus.rs": 'replay("c", run)',
        "guest/tests/d.c": "static void e(void)\n",
    }
    good = "`a::b::loud`, `kill: one dies`, `fuzz: c`, `driver::e`"
    table = "| threat | measure | test |\n|---|---|---|\n| t | m | {} |\n"
    tree = Tree(files)

    def found(last):
        return [what for _, what in problems(table.format(last), tree)]

    bad = ["`a::quiet`", "`kill: two die`", "`fuzz: d`", "`driver::f`", "", "`kill/run`"]
    return [
        ("tests that are there are known", not found(good)),
        ("tests that are not there are found", all(found(last) for last in bad)),
        ("what is inspected must be there",
         not found("by inspection: `tests/kill/run`") and found("by inspection: `tests/x`") != []),
        ("a table without the column is found",
         list(problems("| threat | m |\n|---|---|\n| a | b |\n", tree)) != []),
    ]
