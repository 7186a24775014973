#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Shows plain `//` comments of a header to Doxygen.

A block of comment lines before a declaration becomes its description, a comment behind code the
description of that line. The first block of a file describes the file. Characters that Doxygen
would take for markup are escaped. Usage: filter.py HEADER > FILTERED
"""
import re
import sys

COMMENT = re.compile(r"^(\s*)// ?(.*)$")
TRAILING = re.compile(r"^(.*?[;,{}(])\s*// ?(.*)$")


def escaped(text):
    return re.sub(r'([\\@<>#&%"]|::)', r"\\\1", text)


def filtered(lines, name):
    out = []
    first = True
    at = 0
    while at < len(lines):
        line = lines[at]
        if COMMENT.match(line) and "SPDX" not in line:
            block = []
            while at < len(lines) and COMMENT.match(lines[at]):
                block.append(COMMENT.match(lines[at]))
                at += 1
            if first:
                out += ["/// \\file", "///"]
                first = False
            out += [f"{m[1]}/// {escaped(m[2])}".rstrip() for m in block]
            # A comment that stands alone must not slip to what follows.
            if at >= len(lines) or not lines[at].strip():
                out.append("")
            continue
        trailing = TRAILING.match(line)
        if trailing and "://" not in trailing[2] and not line.lstrip().startswith("#"):
            out.append(f"{trailing[1]}  ///< {escaped(trailing[2])}")
        else:
            out.append(line)
        at += 1
    return out


def main():
    name = sys.argv[1]
    with open(name, encoding="utf-8") as file:
        print("\n".join(filtered(file.read().splitlines(), name)))


if __name__ == "__main__":
    main()
