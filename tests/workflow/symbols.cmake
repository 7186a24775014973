# cmake -DLIBRARY=... -DNM_OPTIONS=... -P symbols.cmake
# Names that the library offers to others and that are not of namespace tessera are an error.
include(${CMAKE_CURRENT_LIST_DIR}/../support/run.cmake)

separate_arguments(options UNIX_COMMAND "${NM_OPTIONS}")
run(nm --defined-only --extern-only --format=posix ${options} ${LIBRARY})
string(REGEX MATCHALL "[^\n]+" lines "${output}")
list(FILTER lines EXCLUDE REGEX "^$|:$")  # names of the members of an archive
list(LENGTH lines count)
if(count LESS 500)
  message(FATAL_ERROR "${LIBRARY}: only ${count} names, so this is not the library:\n${output}")
endif()
list(FILTER lines EXCLUDE REGEX "^_Z(T[ISTV]|GV|T[hvc][0-9n_]+)?N[KRO]*7tessera")
list(LENGTH lines foreign)
if(foreign)
  list(SUBLIST lines 0 5 some)
  list(JOIN some "\n  " some)
  # CMake breaks lines that do not begin with a space, depending on the length of the path.
  message(FATAL_ERROR "${LIBRARY}\n  ${foreign} of ${count} names are not ours, such as\n  ${some}")
endif()
message(STATUS "${count} names, all of namespace tessera")
