#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the Spack recipe against a small model of Spack's language, and CMake's options against it.

Usage: check_spack.py SOURCE [--self-test]
Not a substitute for `spack audit`: it finds syntax errors, unknown directives, variants that name no
option of the build, versions that differ from the project's, and wrong arguments of CMake.
"""

import itertools
import pathlib
import re
import sys
import types

DIRECTIVES = ["license", "version", "variant", "conflicts", "depends_on"]


def load(text):
    """The class of the recipe and its directives as (name, positional, named)."""
    calls = []

    def directive(name):
        return lambda *args, **named: calls.append((name, args, named))

    class Package:
        def define(self, name, value):
            return f"-D{name}={cmake_value(value)}"

        def define_from_variant(self, name, variant):
            return self.define(name, self.spec.values[variant])

    module = types.ModuleType("spack.package")
    names = {name: directive(name) for name in DIRECTIVES}
    names |= {
        "CMakePackage": Package,
        "CudaPackage": type("CudaPackage", (), {}),
        "run_after": lambda phase: lambda function: function,
        "which": None,
        "Executable": None,
        "cache_extra_test_sources": None,
    }
    vars(module).update(names)
    module.__all__ = list(names)
    sys.modules |= {"spack": types.ModuleType("spack"), "spack.package": module}
    scope = {}
    exec(compile(text, "package.py", "exec"), scope)
    return scope["Tessera"], calls


def cmake_value(value):
    if isinstance(value, (tuple, list)):
        return ";".join(value)
    return {True: "ON", False: "OFF"}.get(value, value)


class Spec:
    def __init__(self, values):
        self.values = values
        self.variants = {"cuda_arch": types.SimpleNamespace(value=values["cuda_arch"])}

    def satisfies(self, constraint):
        return self.values[constraint[1:]] == constraint.startswith("+")


def complaints(text, source):
    recipe, calls = load(text)
    found = {name: [call for call in calls if call[0] == name] for name in DIRECTIVES}
    version = re.search(
        r"project\(tessera VERSION ([0-9.]+)", (source / "CMakeLists.txt").read_text()
    )[1]
    if version not in [args[0] for _, args, _ in found["version"]]:
        yield f"no version {version}"
    variants = {args[0] for _, args, _ in found["variant"]} | {"cuda"}
    for _, args, named in calls:
        for text_of_spec in [args[0], named.get("when", "")]:
            for name in re.findall(r"[+~](\w+)", text_of_spec):
                if name not in variants:
                    yield f"'{text_of_spec}' names the variant {name}, which is not there"
    if ("cuda_arch=none", "+cuda") not in [
        (args[0], named.get("when")) for _, args, named in found["conflicts"]
    ]:
        yield "+cuda without an architecture is not refused"

    # BUILD_SHARED_LIBS and CMAKE_* are CMake's own.
    options = "\n".join(path.read_text() for path in sorted((source / "cmake").glob("*.cmake")))
    for flags in itertools.product([True, False], repeat=len(variants)):
        package = recipe()
        package.spec = Spec(dict(zip(sorted(variants), flags)) | {"cuda_arch": ("80", "90")})
        package.values = package.spec.values
        given = dict(argument[2:].split("=", 1) for argument in package.cmake_args())
        for name in given:
            if name.startswith("TESSERA_") and not re.search(rf"(option|set)\({name}\b", options):
                yield f"{name} is no option of the build"
        for variant, option in [
            ("cuda", "TESSERA_CUDA"),
            ("shared", "BUILD_SHARED_LIBS"),
            ("tests", "TESSERA_TESTS"),
            ("fortran", "TESSERA_FORTRAN"),
        ]:
            if given.get(option) != cmake_value(package.spec.values[variant]):
                yield f"variant {variant} does not reach {option}"
        architectures = "80;90" if package.spec.values["cuda"] else None
        if given.get("CMAKE_CUDA_ARCHITECTURES") != architectures:
            yield f"architectures are {given.get('CMAKE_CUDA_ARCHITECTURES')}"


def self_test(text, source):
    for old, new, part in [
        ('version("0.2', 'version("9.2', "no version"),
        ('when="+tests"', 'when="+tets"', "tets"),
        ('"cuda_arch=none"', '"cuda_arch=80"', "not refused"),
        ('"TESSERA_CUDA"', '"TESSERA_CUDAS"', "no option"),
        ('"BUILD_SHARED_LIBS"', '"BUILD_SHARED"', "does not reach"),
        ('"CMAKE_CUDA_ARCHITECTURES"', '"CMAKE_CUDA_ARCHS"', "architectures"),
    ]:
        if old not in text or not any(
            part in line for line in complaints(text.replace(old, new), source)
        ):
            yield f"'{old}' as '{new}' is not noticed"


def main():
    source = pathlib.Path(sys.argv[1])
    text = (source / "tools/spack/package.py").read_text()
    rule = self_test if "--self-test" in sys.argv else complaints
    found = sorted(set(rule(text, source)))
    print("\n".join(found) or "spack recipe: well")
    sys.exit(1 if found else 0)


main()
