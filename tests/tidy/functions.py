"""Finds functions and their lengths in Rust, C and Python sources."""

import ast
import re

# Everything in which a brace is not a brace. Lifetimes ('a) are not character literals.
NOT_CODE = {
    "rust": re.compile(
        r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?c?"(?:\\.|[^"\\])*"|'
        r"b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[0-9a-fA-F]+\}|.)|[^'\\\n])'", re.DOTALL),
    "c": re.compile(
        r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|' r"'(?:\\.|[^'\\])+'", re.DOTALL),
}
RUST_FN = re.compile(r"\bfn\s+([A-Za-z_]\w*)")
C_FN = re.compile(r"^(?!\s|#|typedef|struct|union|enum)[\w\s*]*?\b(\w+)\s*\([^;{}]*\)\s*\{",
                  re.MULTILINE)


def blank(text, language):
    """The text with comments and literals replaced by spaces, lines kept."""
    return NOT_CODE[language].sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def closing(code, opening):
    """The position of the brace that closes the one at `opening`."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(code, opening):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.start()
    return len(code) - 1


def measured(code, name, start, opening):
    """(name, first line, number of lines) of a function with a body."""
    first = code.count("\n", 0, start) + 1
    return name, first, code.count("\n", 0, closing(code, opening)) + 2 - first


def arguments(code, start):
    """What is between a call's opening parenthesis, which ends at `start`, and its closing one."""
    depth, parts = 0, [""]
    for char in code[start:]:
        if char == ")" and depth == 0:
            break
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


def rust(text):
    """The functions of a Rust source."""
    code = blank(text, "rust")
    found = []
    for match in RUST_FN.finditer(code):
        # A declaration without a body ends in a semicolon; `[u8; 4]` among its types does not.
        depth = 0
        for position in range(match.end(), len(code)):
            char = code[position]
            depth += (char in "([") - (char in ")]")
            if char == "{" and depth == 0:
                found.append(measured(code, match.group(1), match.start(), position))
            if char in "{;" and depth == 0:
                break
    return found


def c(text):
    """The functions of a C source."""
    code = blank(text, "c")
    return [measured(code, m.group(1), m.start(), m.end() - 1) for m in C_FN.finditer(code)]


def python(text):
    """The functions of a Python source."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [(node.name, node.lineno, node.end_lineno - node.lineno + 1)
            for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]


def self_test():
    """The scanner must not be fooled, or the rule means nothing."""
    source = 'fn a<\'x>(v: &\'x [u8; 4]) -> char {\n    let s = "}"; // }\n    \'}\'\n}\n'
    trait = "trait T {\n    fn b(&self, x: [u8; 2]);\n    fn d(&self) {\n    }\n}\n"
    c_source = ('static int f(int a,\n\t     char *b)\n{\n\tputs("}");\n\treturn 0;\n}\n'
                'int g(void);\n')
    return [
        ("the scanner reads Rust", rust(source) == [("a", 1, 4)]),
        ("the scanner skips declarations", rust(trait) == [("d", 3, 2)]),
        ("the scanner reads C", c(c_source) == [("f", 1, 6)]),
        ("the scanner reads Python", python("def h():\n    pass\n") == [("h", 1, 2)]),
    ]
