#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs every command of the documentation.

Each block of ```sh in a page is run by bash, in a copy of the sources whose build/release is the
build under test, with PREFIX set to an installation of it. Blocks of one page share the copy, so
that a later one finds what an earlier one made. A comment before the block says if it is not run
here:

  <!-- not run: reason -->       needs what a test does not have, such as a cluster
  <!-- run by: FILE -->          each of its lines stands in that file, which is run elsewhere

Usage: commands.py --source DIR --build DIR --prefix DIR --scratch DIR [--seconds N] PAGE...
"""
import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

BLOCK = re.compile(r"(?:<!-- (not run|run by): (.+?) -->\n+)?^```sh\n(.*?)^```", re.M | re.S)


def copy_sources(source, build, scratch):
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    listed = subprocess.run(["git", "-C", source, "ls-files"], capture_output=True, text=True)
    names = listed.stdout.split() or [
        str(p.relative_to(source)) for p in source.rglob("*") if p.is_file() and "build" not in p.parts]
    for name in names:
        if name.startswith("tests/golden/") or not (source / name).exists():
            continue
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, scratch / name)
    (scratch / "tests" / "golden").symlink_to(source / "tests" / "golden")
    (scratch / "build").mkdir()
    (scratch / "build" / "release").symlink_to(build)


def commands_of(text):
    """The lines of a block without comments, continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = (re.sub(r"\s+#.*$|^#.*$", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def run(text, folder, environment, seconds):
    """None, or how the block failed."""
    process = subprocess.Popen(["bash", "-euo", "pipefail", "-c", text], cwd=folder, env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True)
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return f"not done after {seconds} s\n{output}"
    return None if process.returncode == 0 else f"exit code {process.returncode}\n{output}"


def check_page(page, options, environment):
    """Yields (line, outcome, text) for each block; outcome "failed" is a failure."""
    text = page.read_text(encoding="utf-8")
    marked = {m.start(3) for m in BLOCK.finditer(text)}
    for fence in re.finditer(r"^```sh\n", text, re.M):
        assert fence.end() in marked, f"{page}: a block that is not closed"
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(3)) + 1
        kind, argument, body = block.groups()
        if kind == "not run":
            yield line, "not run", argument
        elif kind == "run by":
            script = (options.source / argument).read_text(encoding="utf-8")
            absent = [c for c in commands_of(body) if c not in script]
            yield line, *(("failed", f"not in {argument}: {absent}") if absent else ("run by", argument))
        else:
            failure = run(body, options.scratch, environment, options.seconds)
            yield line, *(("failed", f"{body}{failure}") if failure else ("run", commands_of(body)[0]))


def main():
    parser = argparse.ArgumentParser()
    for name in ("source", "build", "prefix", "scratch"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("pages", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    environment = dict(os.environ, PREFIX=str(options.prefix), TESSERA_SKIP_SETUP="1")
    environment["PATH"] = f"{options.build / 'tools'}:{environment['PATH']}"
    failures = ran = 0
    for page in options.pages:
        copy_sources(options.source, options.build, options.scratch)
        for line, outcome, text in check_page(page, options, environment):
            print(f"{page.name}:{line}: {outcome}: {text}", flush=True)
            failures += outcome == "failed"
            ran += outcome == "run"
    print(f"{ran} blocks run, {failures} failed")
    if ran == 0:
        print("no block was run at all")
    return 1 if failures or ran == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
