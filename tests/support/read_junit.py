#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints a JUnit file in lines, a case each. Fails if the file is not one well-formed document, or if
its counts are not those of its cases.

Usage: read_junit.py FILE
"""

import sys
import xml.etree.ElementTree as tree

KINDS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def main(path):
    for suite in tree.parse(path).getroot().iter("testsuite"):
        cases = suite.findall("testcase")
        found = {"tests": len(cases)} | {k: len(suite.findall(f"testcase/{tag}")) for k, tag in KINDS.items()}
        said = {key: int(suite.get(key)) for key in found}
        if said != found:
            sys.exit(f"{path}: {said} are said and {found} are there")
        print(suite.get("name"), found)
        for case in cases:
            outcome = next(iter(case), None)
            if outcome is None:
                print(f"{case.get('name')}: passed")
            else:
                text = " ".join((outcome.text or "").split())
                print(f"{case.get('name')}: {outcome.tag}: {outcome.get('message')}: {text}")


main(*sys.argv[1:])
