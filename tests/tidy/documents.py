"""What the documents promise: a map that stays a map, and tests that are where they belong."""

import re

MAP = "docs/ARCHITECTURE.md"
MAP_WORDS = 2000
TEST = re.compile(r"#\[(test|cfg\(.*\btest\b.*\))\]|\bproptest!|#!\[cfg\(loom")
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


def self_test():
    """What the checks must find: name, and whether they did."""
    crate = [("crates/a/Cargo.toml", ""), ("crates/a/src/lib.rs", "fn f() {}")]
    tested = crate + [("crates/a/tests/t.rs", "#[test]\nfn t() {}")]
    return [
        ("a map that has grown is found", bool(list(length([(MAP, "word " * 2001)])))),
        ("a map of the allowed length passes", not list(length([(MAP, "word " * 2000)]))),
        ("a crate without tests is found", list(own_tests(crate)) == ["crates/a: no test"]),
        ("a crate with tests passes", not list(own_tests(tested))),
    ]
