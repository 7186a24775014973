# cmake -DSOURCE=... -DBINARY=... -P build_user.cmake -- options of the configuration
# Configures and builds a project from nothing.
include(${CMAKE_CURRENT_LIST_DIR}/../support/command.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/../support/run.cmake)

file(REMOVE_RECURSE ${BINARY})
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${BINARY} ${command})
run(${CMAKE_COMMAND} --build ${BINARY} --parallel 2)
