"""Manual pages and completions: whole, and as mandoc(1) and the shells like them."""

import glob
import os
import re
import subprocess
import tomllib

from lib.netns import BUILD, CAUSEWAY, ROOT

SHARE = os.path.join(BUILD, "share")
PROGRAMS = {"causewayd": 8, "causeway-noded": 8}


def said(*argv, env=None):
    """What a command prints; it must succeed."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=120, check=False, env=dict(os.environ, **(env or {})))
    assert done.returncode == 0, f"{' '.join(argv)}: {done.returncode}: {done.stdout}"
    return done.stdout


def text(name, section):
    """A page as a reader sees it, without hyphenation or bold."""
    path = os.path.join(SHARE, "man", f"man{section}", f"{name}.{section}")
    plain = said("mandoc", "-T", "utf8", "-O", "width=400", path)
    return re.sub(".\b", "", plain)


def lint():
    """mandoc finds nothing, and every page that another names is there."""
    pages = sorted(glob.glob(os.path.join(SHARE, "man", "man*", "*.*")))
    assert len(pages) > 80, f"{len(pages)} pages"
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "style", *pages], check=False, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=120)
    # It looks for pages where they are installed.
    near = {os.path.basename(page) for page in pages} | {"strerror.3", "ibv_fork_init.3"}
    wrong = []
    for line in done.stdout.splitlines():
        named = re.search(r"referenced manual not found: Xr (\S+) (\d)", line)
        if not named or f"{named[1]}.{named[2]}" not in near:
            wrong.append(line)
    assert not wrong, "\n".join(wrong)
    return f"{len(pages)} pages"


def functions():
    """Every function that libcauseway exports has a page that names it."""
    with open(os.path.join(ROOT, "crates/causeway/symbols/causeway.sym"), encoding="utf-8") as file:
        names = sorted(set(re.findall(r"\bcw_\w+", file.read())))
    assert len(names) > 60, names
    for name in names:
        assert f"{name}(" in text(name, 3), f"{name}(3) does not say {name}"
    return f"{len(names)} functions"


def options():
    """Every option that a program offers is on its page."""
    count = 0
    for program, section in PROGRAMS.items():
        offered = re.findall(r"(--[a-z-]+)", said(os.path.join(BUILD, "bin", program), "--help"))
        page = text(program, section)
        for option in set(offered):
            assert option in page, f"{program}({section}) lacks {option}"
            count += 1
    page = text("causeway-kube", 8)
    for verb in ("cdi", "cdi-again", "plugin"):
        offered = re.findall(r"(--[a-z-]+)",
                             said(os.path.join(BUILD, "bin", "causeway-kube"), verb, "--help"))
        for option in set(offered):
            assert option in page, f"causeway-kube(8) lacks {option}"
            count += 1
    for verb in ("run", "status", "nodes", "vm-attach", "vm-replug", "bench"):
        offered = re.findall(r"(--[a-z-]+)", said(CAUSEWAY, *verb.split("-"), "--help"))
        page = text(f"causeway-{verb}", 1)
        for option in set(offered):
            assert option in page, f"causeway-{verb}(1) lacks {option}"
            count += 1
    return f"{count} options"


def configuration():
    """Every key of the example, and every key that the sources know, is on causewayd.toml(5)."""
    page = text("causewayd.toml", 5)
    keys = set()
    for path in ("crates/broker/src/config.rs", "crates/broker/src/config/rates.rs",
                 "crates/broker/src/config/sisci.rs",
                 "crates/broker/src/config/wire.rs", "crates/directory/src/lib.rs"):
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            source = file.read()
        for table in re.findall(r"deny_unknown_fields[^\n]*\n(?:pub\S* )?struct \w+ \{(.*?)\n\}",
                                source, re.DOTALL):
            keys |= set(re.findall(r"^    (?:pub )?(\w+):", table, re.MULTILINE))
    assert {"endpoints", "userfaultfd", "node_daemon", "lease_seconds"} <= keys, keys
    for key in keys:
        assert re.search(rf"\b{key}\b", page), f"causewayd.toml(5) lacks {key}"
    example = re.search(r"^EXAMPLES\n(.*?)^\S", page, re.MULTILINE | re.DOTALL)[1]
    assert tomllib.loads(example)["tenant"][0]["limits"] == {"endpoints": 64}, example
    return f"{len(keys)} keys"


def settings():
    """Every setting of OPERATIONS is on causeway(7)."""
    with open(os.path.join(ROOT, "docs/OPERATIONS.md"), encoding="utf-8") as file:
        names = set(re.findall(r"^\| `((?:CAUSEWAY|RDMAV|IBV)_[A-Z_]+)`", file.read(), re.M))
    page = text("causeway", 7)
    assert len(names) > 10, names
    for name in names:
        assert name in page, f"causeway(7) lacks {name}"
    return f"{len(names)} settings"


BASH = """
source "$1"
COMP_WORDS=(causeway "$2" "$3") COMP_CWORD=2
[ -n "$3" ] || { COMP_WORDS=(causeway "$2"); COMP_CWORD=1; }
_causeway causeway "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
echo "${COMPREPLY[@]}"
"""


def completions():
    """bash completes verbs and options; zsh and fish can read theirs."""
    script = os.path.join(SHARE, "bash-completion/completions/causeway")
    verbs = said("bash", "-c", BASH, "bash", script, "st", "").split()
    assert verbs == ["status"], verbs
    found = said("bash", "-c", BASH, "bash", script, "status", "--j").split()
    assert found == ["--json"], found
    said("zsh", "-n", os.path.join(SHARE, "zsh/vendor-completions/_causeway"))
    fish = os.path.join(SHARE, "fish/vendor_completions.d/causeway.fish")
    offered = said("fish", "--no-config", "-c", f"source {fish}; complete -C 'causeway st'")
    assert offered.split()[0] == "status", offered
    assert "manual" not in said("bash", "-c", BASH, "bash", script, "man", ""), "a hidden verb"


TESTS = [("manual pages: mandoc finds nothing", lint), ("manual pages: functions", functions),
         ("manual pages: options", options), ("manual pages: configuration", configuration),
         ("manual pages: settings", settings), ("completions", completions)]
