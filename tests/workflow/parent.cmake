# cmake -DSOURCE=... -DBINARY=... -DGENERATOR=... -P parent.cmake -- options of the configuration
# A project that has tessera as a part of its build: configures, compiles against the headers,
# installs nothing of tessera. Building tessera anew would only take time.
include(${CMAKE_CURRENT_LIST_DIR}/../support/command.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/../support/run.cmake)

file(REMOVE_RECURSE ${BINARY})
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE} -B ${BINARY} ${command})
if(GENERATOR MATCHES "Ninja")  # others build what a target links before its objects
  run(${CMAKE_COMMAND} --build ${BINARY} --target user)
endif()
run(${CMAKE_COMMAND} --install ${BINARY} --prefix ${BINARY}/prefix)
file(GLOB_RECURSE installed ${BINARY}/prefix/*)
if(installed)
  message(FATAL_ERROR "installed by the parent: ${installed}")
endif()
