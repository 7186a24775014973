# cmake -DNM=nm -DLIBRARY=libtessera_c.so -DSYMBOLS=symbols.txt -DHEADER=tessera.h -DFORTRAN=tessera_c.f90 -P symbols.cmake
# What the library exports, what the header declares, what Fortran binds and the list in the
# repository are the same names, in both directions.
function(compare what names)
  set(extra ${names})
  set(missing ${listed})
  list(REMOVE_ITEM extra ${listed})
  list(REMOVE_ITEM missing ${names})
  if(extra OR missing)
    message(FATAL_ERROR "${what} and ${SYMBOLS} differ\n  not in the list: ${extra}\n  only in the list: ${missing}")
  endif()
endfunction()

file(STRINGS ${SYMBOLS} listed)
execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL " [A-Za-z] [^\n]+" lines "${text}")
list(TRANSFORM lines REPLACE "^ [A-Za-z] " "")
compare(${LIBRARY} "${lines}")

file(READ ${HEADER} text)
string(REGEX MATCHALL "TESSERA_API [a-z* ]+tessera_[a-z_]+\\(" lines "${text}")
list(TRANSFORM lines REPLACE "^.*[* ](tessera_[a-z_]+)\\($" "\\1")
compare(${HEADER} "${lines}")

file(READ ${FORTRAN} text)
string(REGEX MATCHALL "bind\\(c, name=\"tessera_[a-z_]+\"" lines "${text}")
list(TRANSFORM lines REPLACE "^.*\"(tessera_[a-z_]+)\"$" "\\1")
compare(${FORTRAN} "${lines}")
message("${SYMBOLS}: all well")
