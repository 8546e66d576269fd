"""The manifests in packaging/kubernetes, against the schemas of Kubernetes' API."""

import os
import re
import subprocess

import yaml

from lib.netns import ROOT

FOLDER = os.path.join(ROOT, "packaging", "kubernetes")
PROGRAM = os.path.join(ROOT, "build", "venv", "kubernetes", "bin", "kubernetes-validate")
# The oldest that passes CDI names on (with a feature gate), and a new one.
VERSIONS = ("1.28", "1.37")


def validate(version, path):
    """The status and words of the validator."""
    done = subprocess.run([PROGRAM, "--strict", "-k", version, path], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def manifests(check, folder):
    """Each is valid; and what is not is found."""
    names = sorted(os.listdir(FOLDER))
    check("manifests: there are some", None if names else "none")
    for name in names:
        path = os.path.join(FOLDER, name)
        for version in VERSIONS:
            status, text = validate(version, path)
            check(f"manifests: {name}, Kubernetes {version}", text if status else None)
    wrong = os.path.join(folder, "wrong.yaml")
    with open(os.path.join(FOLDER, "node.yaml"), encoding="utf-8") as file:
        text = file.read()
    with open(wrong, "w", encoding="utf-8") as file:
        file.write(text.replace("hostPID:", "hostPid:"))
    status, said = validate(VERSIONS[-1], wrong)
    check("manifests: a wrong one is found", None if status and "hostPid" in said else said)
    options(check, text)


def options(check, text):
    """The plugin knows the options that the manifest gives it."""
    program = os.path.join(ROOT, "build", "bin", "causeway-kube")
    said = subprocess.run([program, "plugin", "--help"], stdout=subprocess.PIPE, text=True,
                          check=True).stdout
    known = set(re.findall(r"--[a-z-]+", said))
    sets = [part for part in yaml.safe_load_all(text) if part["kind"] == "DaemonSet"]
    containers = sets[0]["spec"]["template"]["spec"]["containers"]
    command = next(of["command"] for of in containers if of["name"] == "plugin")
    given = {word for word in command if word.startswith("--")}
    check("manifests: the plugin's options", None if given <= known else f"{given - known}")
