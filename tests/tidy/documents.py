"""What the documents promise: a map that stays a map, tests that are where they belong, and targets
of make that there are."""

import re

MAP = "docs/ARCHITECTURE.md"
MAP_WORDS = 2000
TEST = re.compile(r"#\[(test|cfg\(.*\btest\b.*\))\]|\bproptest!|#!\[cfg\(loom")
# As code in a sentence, or as a command in a block.
INLINE = re.compile(r"`make ([^`]*)`")
BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^ *make (.*)$", re.MULTILINE)
TARGETS = re.compile(r"^([\w-]+(?: [\w-]+)*):(?!=)", re.MULTILINE)
# It says what there was.
HISTORY = "docs/CHANGELOG.md"
# Without its feature it is empty, and with it the stages that kill and stop are its tests.
UNTESTED = ("fault",)


def length(files):
    """ARCHITECTURE.md is a map: it has at most 2,000 words, and details a page of their own."""
    count = len(dict(files)[MAP].split())
    if count > MAP_WORDS:
        yield f"{MAP}: {count} words"


def own_tests(files):
    """Each crate has tests in it."""
    tested = {path.split("/")[1] for path, text in files
              if path.startswith("crates/") and path.endswith(".rs") and TEST.search(text)}
    crates = {path.split("/")[1] for path, _ in files
              if re.fullmatch(r"crates/[^/]+/Cargo\.toml", path)}
    for crate in sorted(crates - tested - set(UNTESTED)):
        yield f"crates/{crate}: no test"


def targets(files):
    """What the documents have people make are targets of the Makefile."""
    known = {name for path, text in files if path == "Makefile" or path.endswith(".mk")
             for line in TARGETS.findall(text) for name in line.split()}
    # `make && make kube`.
    known.add("make")
    for path, text in files:
        if not path.endswith(".md") or path == HISTORY:
            continue
        blocks = "\n".join(BLOCK.findall(text))
        for asked in INLINE.findall(text) + COMMAND.findall(blocks):
            words = asked.split("#")[0].split()
            # In another folder it is another makefile.
            if "-C" not in words:
                yield from (f"{path}: make {word}" for word in words
                            if re.fullmatch(r"[a-z][\w-]*", word) and word not in known)


def self_test():
    """What the checks must find: name, and whether they did."""
    crate = [("crates/a/Cargo.toml", ""), ("crates/a/src/lib.rs", "fn f() {}")]
    makefile = ("Makefile", "all: bins\nA := b\n%.o: %.c\nwheel tarball: all\n")
    tested = crate + [("crates/a/tests/t.rs", "#[test]\nfn t() {}")]
    return [
        ("a map that has grown is found", bool(list(length([(MAP, "word " * 2001)])))),
        ("a map of the allowed length passes", not list(length([(MAP, "word " * 2000)]))),
        ("a crate without tests is found", list(own_tests(crate)) == ["crates/a: no test"]),
        ("a target that is not there is found",
         list(targets([makefile, ("a.md", "so `make -s wheel A=b c`, which may\nmake sense\n"
                                  "```\nmake all # of it\nmake d\nmake -C e f\n```\n")])) ==
         ["a.md: make c", "a.md: make d"]),
        ("a crate with tests passes", not list(own_tests(tested))),
    ]
