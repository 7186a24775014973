#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Holds the pages against the sources.

- Every relative link leads to a file.
- Every variable TESSERA_* that the sources or scripts read is in a table of a page, and every one
  that a page names is read somewhere.
- Every block of code that says `<!-- from: FILE -->` is a part of that file, line by line.

Usage: pages.py SOURCE
"""
import pathlib
import re
import subprocess
import sys

# Names that are no settings: macros and properties of our own build.
INTERNAL = re.compile(
    r"TESSERA_(KERNELS_NAMESPACE|GPU_NAMESPACE|VERSION\w*|X86|SOURCE_GOLDEN_DIR|ISAS|USER_IS_ROOT|"
    r"CORES|IN_CONTAINER|TEST_RANKS|TEST_GOLDEN_DIR|\w*_H|\w*_)$")
READ = [
    re.compile(r'getenv\("(TESSERA_\w+)"'),
    re.compile(r'(?:timeout|flag|number|text|value|path|environment)\w*\("(TESSERA_\w+)"'),
    re.compile(r"\$\{(TESSERA_\w+):?-"),
    re.compile(r"^\s*(?:option|cmake_dependent_option)\((TESSERA_\w+)", re.M),
    re.compile(r"^\s*set\((TESSERA_\w+) .*CACHE", re.M),
]


def tracked(source):
    out = subprocess.run(["git", "-C", source, "ls-files"], capture_output=True, text=True, check=True)
    return [source / name for name in out.stdout.split()]


def pages_of(files):
    return [f for f in files if f.suffix == ".md" and "golden" not in f.parts]


def broken_links(pages):
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)|src=\"([^\"]+)\"", text):
            link = target[0] or target[1]
            if not re.match(r"[a-z]+:", link) and not (page.parent / link).exists():
                yield f"{page}: no such file: {link}"


def variables(files, pages):
    read = {}
    for file in files:
        if file.suffix in (".md", ".safetensors") or not file.is_file():
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        for pattern in READ:
            for name in pattern.findall(text):
                if not INTERNAL.match(name):
                    read.setdefault(name, file)
    everything = "".join(f.read_text(encoding="utf-8", errors="replace") for f in files
                         if f.suffix not in (".md", ".safetensors") and f.is_file())
    documented = set()
    for page in pages:
        if page.name == "CHANGELOG.md":
            continue
        documented |= set(re.findall(r"TESSERA_[A-Z_0-9]+[A-Z0-9]", page.read_text(encoding="utf-8")))
    for name, file in sorted(read.items()):
        if name not in documented:
            yield f"{file}: reads {name}, which no page explains"
    for name in sorted(documented):
        if name not in everything:
            yield f"a page explains {name}, which nothing reads"


def quoted(source, pages):
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for name, code in re.findall(r"<!-- from: (\S+) -->\n+```\w*\n(.*?)^```", text, re.M | re.S):
            file = source / name
            if not file.exists():
                yield f"{page}: quotes {name}, which does not exist"
                continue
            lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
            at = 0
            for line in filter(None, (part.strip() for part in code.splitlines())):
                if line in ("...", "// ...", "/* ... */", "! ..."):
                    continue
                try:
                    at = lines.index(line, at) + 1
                except ValueError:
                    yield f"{page}: this line is not, or not in this place, in {name}: {line}"
                    break


def main():
    source = pathlib.Path(sys.argv[1]).resolve()
    files = tracked(source)
    pages = pages_of(files)
    problems = [*broken_links(pages), *variables(files, pages), *quoted(source, pages)]
    print("\n".join(problems) or f"{len(pages)} pages: well")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
