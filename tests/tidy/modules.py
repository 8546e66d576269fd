"""Which modules of a crate use each other, and which of them form circles.

A module here is what lib.rs or main.rs declares: a file, or a folder with all that is in it.
Modules of tests do not count. A circle is a set of modules each of which reaches all others by
`use`, or by a path that begins with `crate::`.
"""

import os
import re

# Comments and strings, which may hold anything; `'"'` begins no string.
NOT_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|'\\?\"'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
# An item, with its braces balanced by rustfmt's indentation, that only tests see.
TESTS = re.compile(r"^( *)#\[cfg\((?:all\()?test.*?\n(?:\1#.*\n)*\1[^\n]*(?:;\n|\{.*?\n\1\}\n)",
                   re.DOTALL | re.MULTILINE)
DECLARED = re.compile(r"^(?:pub(?:\(\w+\))? )?mod (\w+)", re.MULTILINE)
EXPORT = re.compile(r"^pub(?:\(crate\))? use (?:crate::|self::)?(\w+)::([^;]+);", re.MULTILINE)
PATH = re.compile(r"\bcrate::(\w+|\{)")


def code(text):
    """The text without comments, strings and what only tests see."""
    return TESTS.sub("", NOT_CODE.sub('""', text))


def group(text, start):
    """The names that begin the entries of a braced list; `start` is behind its brace."""
    depth, names, word = 0, [], ""
    for char in text[start:]:
        if char == "}" and depth == 0:
            break
        depth += (char == "{") - (char == "}")
        if depth == 0 and char == ",":
            names.append(word)
            word = ""
        elif depth == 0 or not word.endswith("::"):
            word += char
    names.append(word)
    return [match.group() for name in names if (match := re.match(r"\w+", name.strip()))]


def top(root, path):
    """The module of lib.rs that a file belongs to, or None for the root and for tests."""
    parts = os.path.relpath(path, root).removesuffix(".rs").split(os.sep)
    if parts[0] in ("lib", "main") or parts[-1] == "tests" or parts[-1].endswith("_tests"):
        return None
    return parts[0]


def uses(root, files):
    """For each module of a crate, the other modules it uses. `files`: path and text."""
    names, exported = set(), {}
    for path, text in files:
        if os.path.basename(path) in ("lib.rs", "main.rs") and os.path.dirname(path) == root:
            names.update(DECLARED.findall(code(text)))
            for module, items in EXPORT.findall(code(text)):
                exported.update((item, module) for item in re.findall(r"\w+", items))
    graph = {name: set() for name in names}
    for path, text in files:
        own = top(root, path)
        if own not in names:
            continue
        text = code(text)
        for match in PATH.finditer(text):
            found = group(text, match.end()) if match[1] == "{" else [match[1]]
            used = {name if name in names else exported.get(name) for name in found}
            graph[own] |= {name for name in used if name in names and name != own}
    return graph


def reach(graph, start):
    """All that is reached from a module by one step or more."""
    seen, todo = set(), [start]
    while todo:
        for following in graph[todo.pop()] - seen:
            seen.add(following)
            todo.append(following)
    return seen


def circles(graph):
    """The circles of a graph, each as a set of names."""
    reached = {name: reach(graph, name) for name in graph}
    found = []
    for name in sorted(graph):
        if name in reached[name] and not any(name in circle for circle in found):
            found.append({other for other in reached[name] if name in reached[other]})
    return found


def naming(root, files, crate):
    """The modules of a crate that name another crate of ours."""
    wanted = re.compile(rf"\bcauseway_{crate}\b")
    found = {top(root, path) for path, text in files if wanted.search(code(text))}
    return found - {None}


def leak(root, files, module, crate):
    """The modules by which one reaches another crate of ours, itself included."""
    graph = uses(root, files)
    reached = reach(graph, module) | {module}
    return reached & naming(root, files, crate)


def self_test():
    """What the reading of modules must find: name, and whether it did."""
    files = [("src/lib.rs", "mod a;\nmod b;\nmod c;\npub use c::{Thing, Other};\n"),
             ("src/a.rs", "use crate::b;\n// crate::c\nfn f() { let x = \"crate::c\"; }\n"),
             ("src/b/mod.rs", "use crate::{Thing, a::{self, X}};\n"),
             ("src/b/tests.rs", "use crate::c;\n"),
             ("src/c.rs", "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n")]
    graph = uses("src", files)
    named = [("src/lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\n"),
             ("src/a.rs", "// causeway_wire\nuse crate::b::Thing;\n"),
             ("src/a/tests.rs", "use causeway_wire::ddp;\n"),
             ("src/b.rs", "pub use crate::c::Thing;\n"),
             ("src/c.rs", "pub use causeway_wire::Thing;\n"),
             ("src/d.rs", "use causeway_wire::Thing;\n")]
    return [("the reader of modules finds what is used",
             graph == {"a": {"b"}, "b": {"a", "c"}, "c": set()}),
            ("circles are found", circles(graph) == [{"a", "b"}]),
            ("a crate is found through what others export",
             leak("src", named, "a", "wire") == {"c"} and
             leak("src", named, "d", "wire") == {"d"} and
             leak("src", named[:3] + named[5:], "a", "wire") == set())]
