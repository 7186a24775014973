# SPDX-License-Identifier: MIT
"""Spack recipe of Tessera.

In a repository of your own:  spack repo create tessera-repo; put this file into
tessera-repo/packages/tessera/package.py; spack repo add tessera-repo.
To build from a source tree:  spack dev-build --source-path PATH tessera@main
"""

from spack.package import *


class Tessera(CMakePackage, CudaPackage):
    """Runtime for tensors that are spread over MPI ranks: models whose activations grow with the
    square of the sequence run, forward and backward, on a grid of ranks."""

    homepage = "https://tessera.example"
    git = "https://tessera.example/tessera.git"

    license("MIT")

    version("main", branch="main")
    version("0.2.0", tag="v0.2.0")

    variant("mpi", default=True, description="Many ranks; without it, one")
    variant("shared", default=True, description="tessera::tessera is the shared library")
    variant("fortran", default=False, when="+mpi", description="Fortran module")
    variant("tests", default=False, description="Install the tests and the golden files")
    variant("fortran", default=True, when="+mpi", description="The Fortran module")
    # variant cuda and cuda_arch: CudaPackage

    conflicts("cuda_arch=none", when="+cuda", msg="name the architecture: cuda_arch=80 or 90")
    conflicts("%gcc@:11", msg="C++20")
    conflicts("%clang@:15", msg="C++20")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("fortran", type="build", when="+fortran")
    depends_on("cmake@3.25:", type="build")
    depends_on("mpi@3:", when="+mpi")
    depends_on("fmt@9:")
    depends_on("eigen@3.4:3", type="build")
    depends_on("nlohmann-json@3.11:3")  # headers of the harness use it
    depends_on("random123", type="build")
    depends_on("xxhash@0.8:", type="build")
    depends_on("cli11@2.1:", type="build")
    depends_on("catch2@2.13:", type="build", when="+tests")
    depends_on("cuda@12:", when="+cuda")

    def cmake_args(self):
        args = [
            self.define_from_variant("TESSERA_MPI", "mpi"),
            self.define_from_variant("TESSERA_CUDA", "cuda"),
            self.define_from_variant("TESSERA_FORTRAN", "fortran"),
            self.define("TESSERA_FORTRAN", self.spec.satisfies("+fortran")),
            self.define_from_variant("TESSERA_TESTS", "tests"),
            self.define_from_variant("BUILD_SHARED_LIBS", "shared"),
            self.define("TESSERA_TEST_HOOKS", False),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(
                self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value)
            )
        return args

    @run_after("install")
    def install_tests(self):
        if self.spec.satisfies("+tests"):
            cmake = which("cmake", required=True)
            cmake("--install", self.build_directory, "--component", "tests")

    def test_parity(self):
        """every layer on one rank, against its serial form and, if installed, the golden files"""
        tessera = which(self.prefix.bin.tessera, required=True)
        output = tessera("parity", output=str.split, error=str.split)
        assert " hold." in output

    def test_own_program(self):
        """a program that finds the installed package by CMake"""
        source = self.test_suite.current_test_cache_dir.tests.workflow.installed_user
        cmake = which(self.spec["cmake"].prefix.bin.cmake, required=True)
        cmake("-S", source, "-B", "build", self.define("CMAKE_PREFIX_PATH", self.prefix))
        cmake("--build", "build")
        output = Executable("build/user")(output=str.split, error=str.split)
        assert "value 7" in output

    @run_after("install")
    def keep_test_sources(self):
        cache_extra_test_sources(self, ["tests/workflow/installed_user"])
