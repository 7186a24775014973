#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks the rules of the sources that no compiler checks; --self-test shows that they bite.

Usage: tools/check_sources.py [--self-test]
"""

import pathlib
import re
import subprocess
import sys

# Each folder may include itself and those before it.
FOLDERS = ["runtime", "mesh", "autodiff", "layers", "harness", "bindings", "tools"]
LIBRARY = FOLDERS[:4]
CODE = {".hpp", ".cpp", ".cu", ".cuh", ".h", ".c"}
# Generated or foreign files, and those that must spell out what is forbidden.
EXEMPT_FROM_WORDS = re.compile(r"tests/golden/.*\.safetensors|tools/check_sources\.py|\.ci/.*|LICENSE")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
SAYS_OR_SEIZES = re.compile(r"\b(f?printf|f?puts|signal|sigaction|pthread_sigmask|atexit)(?= *\()|\bstd::(cout|cerr|clog)\b")
FORBIDDEN = [
    (re.compile(r"\b(TODO|FIXME|XXX|HACK)\b"), "unfinished work belongs into an issue"),
    (re.compile(r"\b(placeholder|stub)s?\b", re.IGNORECASE), "nothing here stands in for something"),
    (re.compile(r"/work\b|\bshared/(spec|golden|design|style)"), "a path of another machine"),
    (re.compile(r"pypi\.org|crates\.io|registry\.npmjs|deb\.debian\.org|conda\.anaconda|huggingface\.co"),
     "the host of a registry"),
    (re.compile(r"\b(ai|llm|coding) (agent|assistant|session)s?\b", re.IGNORECASE), "who wrote it"),
]


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def folder_of(path):
    # Examples are programs of somebody else, who may do as they like.
    inner = {("tools", "harness"): "harness", ("tools", "examples"): "examples"}
    return inner.get(path.parts[:2], path.parts[0])


def check_includes(path, text):
    folder = folder_of(path)
    if folder not in FOLDERS:
        return
    for match in INCLUDE.finditer(text):
        bracket, name = match.groups()
        line = line_of(text, match.start())
        parts = name.split("/")
        if name == "tessera/version.h":  # made by the build, for all
            continue
        if parts[0] == "tessera":
            included = parts[1] if len(parts) > 2 else "tools"  # tessera/program.hpp
            if included not in FOLDERS or FOLDERS.index(included) > FOLDERS.index(folder):
                yield line, f"{folder}/ may not include {included}/"
        elif bracket == '"' and folder in LIBRARY + ["harness"]:
            yield line, f'write "tessera/{folder}/..." instead of "{name}"'
        if name == "mpi.h" and folder != "mesh":
            yield line, "mpi.h outside mesh/"
        if parts[0] == "nlohmann" and path.suffix == ".hpp" and folder in LIBRARY:
            yield line, "the JSON library in a public header"
        if parts[0] == "CLI" and folder != "tools":
            yield line, "the command line outside tools/"


def check_calls(path, text):
    folder = folder_of(path)
    if folder not in FOLDERS:
        return
    code = COMMENT_OR_STRING.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
    if folder != "mesh":
        for match in re.finditer(r"\bP?MPI_[A-Z]\w*", code):
            yield line_of(code, match.start()), f"{match.group()} outside mesh/"
    if folder in LIBRARY:
        for match in SAYS_OR_SEIZES.finditer(code):
            yield line_of(code, match.start()), f"{match.group()}: the library prints nothing and seizes no signal"
    if folder not in ("runtime", "mesh"):
        for match in re.finditer(r"\bDeviceKind::\w+|\b__CUDA\w+|\bcuda[A-Z]\w+|\bcublas\w+", code):
            yield line_of(code, match.start()), f"{match.group()}: a device branch outside runtime/ and mesh/"


def check_file(path, text):
    lines = text.splitlines()
    if not lines or not lines[0].endswith("SPDX-License-Identifier: MIT"):
        yield 1, "the first line must be `// SPDX-License-Identifier: MIT`"
    limit = 400 if path.suffix in (".hpp", ".h") else 600
    if len(lines) > limit:
        yield limit, f"{len(lines)} lines, more than {limit}"


def check_words(path, text):
    if EXEMPT_FROM_WORDS.fullmatch(str(path)):
        return
    for pattern, reason in FORBIDDEN:
        for match in pattern.finditer(text):
            yield line_of(text, match.start()), f"'{match.group()}': {reason}"


def check(path, text):
    """All (line, complaint) of one file, whose path is relative to the repository."""
    rules = [check_words]
    if path.suffix in CODE:
        rules += [check_file, check_includes, check_calls]
    return [found for rule in rules for found in rule(path, text)]


SPDX = "// SPDX-License-Identifier: MIT\n"
SELF_TEST = [  # path, text after the first line, part of the complaint ("" = none)
    ("runtime/a.cpp", '#include "tessera/runtime/b.hpp"\n#include <vector>\n', ""),
    ("mesh/a.cpp", '#include <mpi.h>\n#include "tessera/runtime/b.hpp"\nint x = MPI_Init(0, 0);\n', ""),
    ("layers/a.cpp", "// MPI_Send is mesh's; \"DeviceKind::cuda\" too\n", ""),
    ("tests/unit/a.cpp", '#include "support/mpi.hpp"\nint x = MPI_COMM_WORLD;\n', ""),
    ("runtime/a.cpp", "auto p = std::make_shared<int>(1);  // shared among views\n", ""),
    ("runtime/a.cpp", '#include "tessera/mesh/b.hpp"\n', "runtime/ may not include mesh/"),
    ("mesh/a.hpp", '#include "tessera/autodiff/b.hpp"\n', "mesh/ may not include autodiff/"),
    ("autodiff/a.cpp", '#  include  "tessera/layers/trunk/b.hpp"\n', "may not include layers/"),
    ("layers/a.cpp", '#include "tessera/tools/b.hpp"\n', "may not include tools/"),
    ("layers/a.cpp", '#include "b.hpp"\n', "instead of"),
    ("layers/a.cpp", '#include "tessera/harness/b.hpp"\n', "may not include harness/"),
    ("layers/a.cpp", '#include "tessera/program.hpp"\n', "may not include tools/"),
    ("tools/harness/a.cpp", '#include "tessera/layers/b.hpp"\n#include "tessera/harness/c.hpp"\n', ""),
    ("tools/harness/a.cpp", '#include "harness/b.hpp"\n', "instead of"),
    ("bindings/c/a.cpp", '#include "guard.hpp"\n#include "tessera/harness/b.hpp"\n', ""),
    ("bindings/c/a.h", '#include "tessera/version.h"\n', ""),
    ("bindings/c/a.cpp", '#include "tessera/program.hpp"\n', "may not include tools/"),
    ("bindings/c/a.c", "MPI_Comm comm;\n", "MPI_Comm outside mesh/"),
    ("tools/examples/a/main.c", "#include <mpi.h>\nint x = MPI_Init(0, 0);\n", ""),
    ("tools/harness/a.cpp", '#include "tessera/program.hpp"\n', "may not include tools/"),
    ("tools/a.cpp", '#include "tessera/harness/b.hpp"\n#include "c.hpp"\n', ""),
    ("layers/a.cpp", "#include <mpi.h>\n", "mpi.h outside"),
    ("runtime/a.cpp", 'std::printf("x");\n', "prints nothing"),
    ("mesh/a.cpp", "std::cerr << x;\n", "prints nothing"),
    ("mesh/a.cpp", "std::signal(SIGTERM, f);\n", "seizes no signal"),
    ("tools/a.cpp", 'std::printf("x");\n', ""),
    ("runtime/a.hpp", "#include <nlohmann/json.hpp>\n", "JSON"),
    ("mesh/a.cpp", "#include <CLI/CLI.hpp>\n", "command line"),
    ("layers/a.cpp", "int x = MPI_Barrier(comm);\n", "MPI_Barrier outside mesh/"),
    ("tools/a.cpp", "MPI_Comm comm;\n", "MPI_Comm outside mesh/"),
    ("tools/harness/a.cpp", "MPI_Comm comm;\n", "MPI_Comm outside mesh/"),
    ("tools/examples/a/b.cpp", "#include <mpi.h>\nMPI_Comm comm;\n", ""),
    ("layers/a.cpp", "if (d.kind == DeviceKind::cuda) {}\n", "device branch"),
    ("autodiff/a.cpp", "#ifdef __CUDACC__\n#endif\n", "device branch"),
    ("layers/a.cpp", "cudaMalloc(&p, 8);\n", "device branch"),
    ("layers/a.cpp", "int x;  // TODO later\n", "TODO"),
    ("README.md", "a placeholder\n", "placeholder"),
    ("README.md", "see " + "/work" + "/main\n", "/work"),
    ("tools/a.sh", "curl https://pypi.org/x\n", "registry"),
    ("runtime/a.hpp", "\n" * 400, "more than 400"),
    ("runtime/a.cpp", "\n" * 600, "more than 600"),
]


def self_test():
    wrong = 0
    for path, text, expected in SELF_TEST:
        found = [complaint for _, complaint in check(pathlib.PurePath(path), SPDX + text)]
        if (any(expected in c for c in found) if expected else not found):
            continue
        wrong += 1
        print(f"self-test: {path} {text.strip()[:60]!r}: expected {expected!r}, found {found}")
    if not check(pathlib.PurePath("runtime/a.cpp"), "int x;\n"):
        wrong += 1
        print("self-test: a missing licence line was not found")
    return wrong


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    if sys.argv[1:] == ["--self-test"]:
        return 1 if self_test() else 0
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            cwd=root, check=True, capture_output=True, timeout=60)
    failures = 0
    for name in sorted(filter(None, listed.stdout.decode().split("\0"))):
        path = pathlib.PurePath(name)
        if path.suffix == ".safetensors" or not (root / path).is_file():
            continue
        for line, complaint in check(path, (root / path).read_text(encoding="utf-8")):
            print(f"{path}:{line}: {complaint}")
            failures += 1
    print(f"sources: {failures} complaints" if failures else "sources: well")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
