# cmake -DBUILD=... -DSOURCE=... -DINSTALLED=... -P install.cmake
# Installs, and moves what it installed: nothing in it may know where it was.
include(${CMAKE_CURRENT_LIST_DIR}/../support/run.cmake)

set(there ${INSTALLED}/elsewhere)
file(REMOVE_RECURSE ${INSTALLED})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${there})

# The manifest is what people remove by: it has all files.
file(STRINGS ${BUILD}/install_manifest.txt manifest)
file(GLOB_RECURSE files LIST_DIRECTORIES FALSE ${there}/*)
list(SORT manifest)
list(SORT files)
if(NOT files STREQUAL manifest)
  message(FATAL_ERROR "the manifest has other files than ${there}")
endif()

# Texts name no folder of this machine.
foreach(file IN LISTS files)
  if(file MATCHES "[.](cmake|pc|hpp|h|sh)$")
    file(READ ${file} text)
    foreach(folder IN ITEMS ${SOURCE} ${BUILD} ${INSTALLED})
      string(FIND "${text}" "${folder}" place)
      if(NOT place EQUAL -1)
        message(FATAL_ERROR "${file} names ${folder}")
      endif()
    endforeach()
  endif()
endforeach()

file(RENAME ${there} ${INSTALLED}/prefix)
run(${INSTALLED}/prefix/bin/tessera --version)
