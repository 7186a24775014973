# What is for clusters, with a launcher that only writes down how it is called.
set(cluster ${CMAKE_CURRENT_SOURCE_DIR}/cluster)
set(scratch ${CMAKE_CURRENT_BINARY_DIR}/cluster)
add_test(NAME workflow.cluster.launcher
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DSCRATCH=${scratch}/launcher
          -DPROGRAM=$<TARGET_FILE:unit.exchange> -DREAL_LAUNCHER=${MPIEXEC_EXECUTABLE}
          -P ${cluster}/launcher.cmake)
add_test(NAME workflow.cluster.run_tests
  COMMAND ${CMAKE_COMMAND} -DSCRIPT=${PROJECT_SOURCE_DIR}/tools/cluster/run-tests.sh
          -DTESTS=${PROJECT_BINARY_DIR}/tests -DSCRATCH=${scratch}/run_tests
          -DREAL_LAUNCHER=${MPIEXEC_EXECUTABLE} -P ${cluster}/run_tests.cmake)
add_test(NAME workflow.cluster.jobs
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DSCRATCH=${scratch}/jobs
          -P ${cluster}/jobs.cmake)
tessera_launch_environment(environment 4)
list(FILTER environment EXCLUDE REGEX "^TESSERA_TEST_RANKS")
set_tests_properties(workflow.cluster.launcher workflow.cluster.run_tests PROPERTIES
  PROCESSORS 4 TIMEOUT 120 LABELS "workflow;ranks-4" ENVIRONMENT "${environment}")
set_tests_properties(workflow.cluster.jobs PROPERTIES TIMEOUT 60 LABELS "workflow;ranks-1")
