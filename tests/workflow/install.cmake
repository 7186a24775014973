# cmake -DBUILD=... -DINSTALLED=... -P install.cmake
# Installs, and moves what it installed: nothing in it may know where it was.
include(${CMAKE_CURRENT_LIST_DIR}/../support/run.cmake)

file(REMOVE_RECURSE ${INSTALLED})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${INSTALLED}/elsewhere)
file(RENAME ${INSTALLED}/elsewhere ${INSTALLED}/prefix)
run(${INSTALLED}/prefix/bin/tessera --version)
