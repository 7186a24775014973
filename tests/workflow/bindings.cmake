# The examples in C and Fortran, built on the installed tree: they run, they give the bits of the
# C++ interface, and C leaks nothing.
set(examples ${PROJECT_SOURCE_DIR}/tools/examples)
set(programs)
# The same compilers, and the same MPI, as the library's.
set(compilers -DCMAKE_C_COMPILER=${CMAKE_C_COMPILER} -DMPI_C_COMPILER=${MPI_C_COMPILER}
    -DMPI_CXX_COMPILER=${MPI_CXX_COMPILER})
foreach(kind IN ITEMS static shared)
  tessera_installed_project(c_triangle.${kind} SOURCE ${examples}/c_triangle
    OPTIONS -DEXAMPLE_LINKS=tessera::tessera_c_${kind} ${compilers})
  list(APPEND programs ${TESSERA_INSTALLED}/c_triangle.${kind}/c_triangle)
  list(APPEND fixtures built.c_triangle.${kind})
endforeach()
if(TESSERA_FORTRAN)
  include(CheckLanguage)
  check_language(Fortran)
  list(APPEND compilers -DCMAKE_Fortran_COMPILER=${CMAKE_Fortran_COMPILER})
  if(MPI_Fortran_COMPILER)
    list(APPEND compilers -DMPI_Fortran_COMPILER=${MPI_Fortran_COMPILER})
  endif()
  tessera_installed_project(fortran_triangle SOURCE ${examples}/fortran_triangle OPTIONS ${compilers})
  tessera_installed_project(fortran_errors SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/installed_fortran
    OPTIONS ${compilers})
  foreach(ranks IN ITEMS 1 4)
    tessera_installed_run(fortran_errors ${ranks}ranks RANKS ${ranks} CODE 0 TEXT "all well" PROGRAM user)
  endforeach()
  list(APPEND programs ${TESSERA_INSTALLED}/fortran_triangle/fortran_triangle)
  list(APPEND fixtures built.fortran_triangle)
endif()

add_test(NAME workflow.triangle_bits
  COMMAND ${CMAKE_COMMAND} "-DPROGRAMS=$<TARGET_FILE:bindings.triangle>;${programs}"
          -DSCRATCH=${CMAKE_CURRENT_BINARY_DIR}/triangle
          "-DLAUNCH=${MPIEXEC_EXECUTABLE};${MPIEXEC_NUMPROC_FLAG};4;${MPIEXEC_PREFLAGS}"
          -P ${CMAKE_CURRENT_LIST_DIR}/triangle_bits.cmake)
tessera_launch_environment(environment 4)
set_tests_properties(workflow.triangle_bits PROPERTIES
  LABELS "workflow;ranks-4" PROCESSORS 4 TIMEOUT 120
  FIXTURES_REQUIRED "${fixtures}" ENVIRONMENT "${environment}")

if(TESSERA_PKG_CONFIG)
  tessera_launch_environment(environment 1)
  foreach(kind IN ITEMS static shared)
    add_test(NAME workflow.pkg_config.c.${kind}
      COMMAND ${CMAKE_COMMAND} -DPREFIX=${TESSERA_INSTALLED}/prefix -DPACKAGE=tessera-c -DKIND=${kind} -DSTANDARD=c99
              -DSOURCE=${examples}/c_triangle/main.c -DSCRATCH=${TESSERA_INSTALLED}/pkg_config.c.${kind}
              -DPKG_CONFIG=${TESSERA_PKG_CONFIG} -DCOMPILER=${MPI_C_COMPILER} "-DEXPECT=1 x 1 ranks.*, well"
              -P ${CMAKE_CURRENT_SOURCE_DIR}/pkg_config.cmake)
    set_tests_properties(workflow.pkg_config.c.${kind} PROPERTIES LABELS "workflow;ranks-1" TIMEOUT 120
      FIXTURES_REQUIRED installed ENVIRONMENT "${environment}")
  endforeach()
endif()

# Memory errors and leaks of one rank. TESSERA_ISA: valgrind knows no AVX-512.
find_program(TESSERA_VALGRIND valgrind)
mark_as_advanced(TESSERA_VALGRIND)
if(NOT TESSERA_VALGRIND OR TESSERA_SANITIZERS)
  return()
endif()
set(memcheck ${TESSERA_VALGRIND} --quiet --num-callers=60 --leak-check=full --error-exitcode=9
    --errors-for-leak-kinds=definite,possible
    --suppressions=${PROJECT_SOURCE_DIR}/tests/support/mpi.supp)
tessera_launch_environment(environment 1)
add_test(NAME workflow.c_triangle.valgrind
         COMMAND ${memcheck} ${TESSERA_INSTALLED}/c_triangle.shared/c_triangle)
set_tests_properties(workflow.c_triangle.valgrind PROPERTIES FIXTURES_REQUIRED built.c_triangle.shared)
add_test(NAME workflow.c_triangle.valgrind_finds
         COMMAND ${CMAKE_COMMAND} -DEXPECT_CODE=9 -DSECONDS=60 "-DEXPECT_TEXT=tessera_tensor_create"
                 -P ${CMAKE_CURRENT_LIST_DIR}/run_program.cmake -- ${memcheck} $<TARGET_FILE:bindings.leak>)
set_tests_properties(workflow.c_triangle.valgrind workflow.c_triangle.valgrind_finds PROPERTIES
  LABELS "workflow;ranks-1" TIMEOUT 120 ENVIRONMENT "${environment};TESSERA_ISA=v3;TESSERA_THREADS=1")
