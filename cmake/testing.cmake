# tessera_test(<name> [SOURCES ...] [LIBRARIES ...] [TIMEOUT seconds])
#
# Builds test_<name>.cpp of the calling folder, whose name is the level, and registers one CTest
# entry for each rank count on the line `// ranks: 1 4 6` of that source:
#   <level>.<name>           one rank, without launcher
#   <level>.<name>.4ranks    through MPIEXEC_EXECUTABLE and its flags
# A build without MPI has the first kind only, and leaves out programs that have none of it.
# Started by hand on another number of ranks, the program reports its tests as skipped. Labels are
# `<level>` and `ranks-<n>`. The target tests.<level> builds the tests of one level.
function(tessera_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "SOURCES;LIBRARIES")
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME level)
  set(target ${level}.${name})
  set(sources ${CMAKE_CURRENT_SOURCE_DIR}/test_${name}.cpp ${arg_SOURCES})
  tessera_test_program(rank_counts ${target} SOURCES ${sources} LIBRARIES ${arg_LIBRARIES})
  foreach(ranks IN LISTS rank_counts)
    tessera_register_test(${target} ${target} ${level} ${ranks} "${arg_TIMEOUT}")
  endforeach()
endfunction()

# tessera_test_program(<variable> <level>.<name> SOURCES ... [LIBRARIES ...]): the program alone,
# and in the variable the rank counts on the line of its first source.
function(tessera_test_program variable target)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "SOURCES;LIBRARIES")
  list(GET arg_SOURCES 0 source)
  tessera_rank_counts(rank_counts ${source})
  set(${variable} "${rank_counts}" PARENT_SCOPE)
  if(NOT rank_counts)
    return()
  endif()
  string(REGEX MATCH "^[^.]+" level ${target})
  cmake_path(GET source STEM program)
  add_executable(${target} ${arg_SOURCES})
  tessera_tell_rank_counts(${target} ${rank_counts})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${program})
  target_link_libraries(${target} PRIVATE tessera_test_support ${arg_LIBRARIES})
  target_precompile_headers(${target} REUSE_FROM tessera_test_support)
  tessera_test_options(${target})
  add_dependencies(tests.${level} ${target})
  if(TESSERA_INSTALL)
    install(TARGETS ${target} RUNTIME DESTINATION ${TESSERA_INSTALL_TESTSDIR}/${level}
            COMPONENT tests EXCLUDE_FROM_ALL)
  endif()
endfunction()

# The numbers on the line `// ranks: 1 4 6` of a source that this build can run on.
function(tessera_rank_counts variable source)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  file(STRINGS ${source} line REGEX "^// ranks:( [0-9]+)+$" LIMIT_COUNT 1)
  if(NOT line)
    message(FATAL_ERROR "${source} needs a line such as `// ranks: 1 4 6`")
  endif()
  string(REGEX MATCHALL "[0-9]+" rank_counts "${line}")
  if(NOT TESSERA_MPI)
    list(FILTER rank_counts INCLUDE REGEX "^1$")
  endif()
  set(${variable} "${rank_counts}" PARENT_SCOPE)
endfunction()

# tessera_tell_rank_counts(<target> <count>...): what main() skips by, see tests/support/session.hpp
function(tessera_tell_rank_counts target)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${target}.ranks.cpp)
  string(JOIN ", " counts ${ARGN})
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT [[
// SPDX-License-Identifier: MIT
namespace tessera::test {
extern const int rank_counts[];
const int rank_counts[] = {@counts@, 0};
}
]])
  target_sources(${target} PRIVATE ${source})
  set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# The work of a test is done by the library: optimising the test itself only costs build time, and
# earns false warnings from GCC 12's string class.
function(tessera_test_options target)
  tessera_warnings(${target})
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(TESSERA_SANITIZERS)
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)  # std::regex in Catch2
  endif()
endfunction()

# tessera_register_test(<name> <target> <level> <ranks> <timeout> [ARGUMENT...])
# One CTest entry, <name> or <name>.<n>ranks, whose name is then in `registered`.
function(tessera_register_test name target level ranks timeout)
  if(ranks EQUAL 1)
    set(command ${target} ${ARGN})
  else()
    string(APPEND name .${ranks}ranks)
    set(command ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${MPIEXEC_PREFLAGS}
                $<TARGET_FILE:${target}> ${ARGN} ${MPIEXEC_POSTFLAGS})
  endif()
  if(NOT timeout)
    set(timeout ${TESSERA_TEST_TIMEOUT})
  endif()
  tessera_launch_environment(environment ${ranks})
  add_test(NAME ${name} COMMAND ${command})
  set_tests_properties(${name} PROPERTIES
    PROCESSORS ${ranks} TIMEOUT ${timeout} LABELS "${level};ranks-${ranks}" SKIP_RETURN_CODE 77
    ENVIRONMENT "${environment}")
  set(registered ${name} PARENT_SCOPE)
endfunction()

# What a run on so many ranks needs in its environment on this machine: nothing beyond our own
# variables unless the MPI is Open MPI. tools/mpi_env.sh is the same for shells.
function(tessera_launch_environment variable ranks)
  set(environment TESSERA_TEST_RANKS=${ranks} TESSERA_TIMEOUT_S=60 TESSERA_LOCKSTEP=1)
  if(ranks GREATER 1)
    list(APPEND environment TESSERA_THREADS=1)
  endif()
  if(MPI_CXX_LIBRARY_VERSION_STRING MATCHES "Open MPI")
    # CTest runs several jobs at once; bound ones would share the same first cores.
    list(APPEND environment OMPI_MCA_hwloc_base_binding_policy=none)
    if(TESSERA_USER_IS_ROOT)
      list(APPEND environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
    endif()
    if(ranks GREATER TESSERA_CORES)
      list(APPEND environment OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
                              PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe)
    endif()
    if(TESSERA_IN_CONTAINER)
      # Copying out of another process is usually forbidden there, and the attempt is fatal.
      list(APPEND environment OMPI_MCA_btl_vader_single_copy_mechanism=none)
    endif()
  endif()
  set(${variable} "${environment}" PARENT_SCOPE)
endfunction()

# Facts about the machine that runs CTest.
set(TESSERA_TEST_TIMEOUT 120 CACHE STRING "Seconds a test may take unless it says otherwise")
execute_process(COMMAND id -u OUTPUT_VARIABLE uid OUTPUT_STRIP_TRAILING_WHITESPACE)
string(COMPARE EQUAL "${uid}" "0" TESSERA_USER_IS_ROOT)
cmake_host_system_information(RESULT TESSERA_CORES QUERY NUMBER_OF_PHYSICAL_CORES)
execute_process(COMMAND nproc OUTPUT_VARIABLE usable OUTPUT_STRIP_TRAILING_WHITESPACE)
if(usable AND usable LESS TESSERA_CORES)
  set(TESSERA_CORES ${usable})
endif()
if(EXISTS /.dockerenv OR EXISTS /run/.containerenv)
  set(TESSERA_IN_CONTAINER ON)
endif()
