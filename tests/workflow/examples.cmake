# The examples, built with the installed tessera as somebody else would, and run.
set(examples ${PROJECT_SOURCE_DIR}/tools/examples)

tessera_installed_project(cpp_split_world SOURCE ${examples}/cpp_split_world)
foreach(ranks IN ITEMS 2 4 6)
  tessera_installed_run(cpp_split_world ${ranks}ranks RANKS ${ranks} CODE 0
                        TEXT "(loss from .*: well.*heat on|heat on .*: well.*loss from).*: well" PROGRAM split_world)
endforeach()
# Its MPI is one for processes of one thread.
tessera_installed_run(cpp_split_world threads RANKS 2 CODE 3 TEXT "InitError.*2 threads per rank.*MPI_THREAD_FUNNELED"
                      PROGRAM split_world)
set_tests_properties(workflow.cpp_split_world.threads PROPERTIES
  ENVIRONMENT_MODIFICATION TESSERA_THREADS=set:2)
tessera_installed_run(cpp_split_world alone RANKS 1 CODE 2 TEXT "two ranks" PROGRAM split_world)

tessera_installed_project(cpp_own_layer SOURCE ${examples}/cpp_own_layer OPTIONS -DOWN_LAYER_CONTROL=ON)
set(own parity --case own.*)
tessera_installed_run(cpp_own_layer 2x2 RANKS 4 CODE 0 TEXT "own[.]gated_row_mean +parity.*1 of 1 hold"
                      PROGRAM own_layer ARGS ${own} --mesh 2x2)
tessera_installed_run(cpp_own_layer 2x3 RANKS 6 CODE 0 TEXT "own[.]gated_row_mean +parity.*1 of 1 hold"
                      PROGRAM own_layer ARGS ${own} --mesh 2x3)
# A sum too few in backward: the numbers are wrong, and so is what was sent.
tessera_installed_run(cpp_own_layer wrong RANKS 4 CODE 1
                      TEXT "grad x differs.*sums of dy. sent nothing, the contract says 1 operations"
                      PROGRAM own_layer_wrong ARGS ${own} --mesh 2x2)
tessera_installed_run(cpp_own_layer contract RANKS 1 CODE 0 TEXT "backward all_reduce on cp1, sums of dy"
                      PROGRAM own_layer ARGS contracts --case own.*)
