# The program as its users meet it: exit code, what it says and how often, and that it ends.
# tessera_program_test(<name> RANKS n CODE c [TEXT regex] [ONCE regex] [ON_RANK_1 VARIABLE=value]
#   ARGS ...)
function(tessera_program_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "RANKS;CODE;TEXT;ONCE;ON_RANK_1;SECONDS" "ARGS;ENVIRONMENT")
  if(NOT arg_SECONDS)
    set(arg_SECONDS 60)
  endif()
  if(arg_RANKS GREATER 1 AND NOT TESSERA_MPI)
    return()
  endif()
  set(launch)
  if(arg_RANKS GREATER 1)
    set(launch ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${arg_RANKS} ${MPIEXEC_PREFLAGS})
  endif()
  if(arg_ON_RANK_1)
    set(rank "\${OMPI_COMM_WORLD_RANK:-\${PMI_RANK:-$PMIX_RANK}}")
    list(APPEND launch sh -c "test ${rank} != 1 && exec \"$@\" || exec env ${arg_ON_RANK_1} \"$@\"" sh)
  endif()
  add_test(NAME workflow.program.${name}
           COMMAND ${CMAKE_COMMAND} -DEXPECT_CODE=${arg_CODE} "-DEXPECT_TEXT=${arg_TEXT}"
                   "-DEXPECT_ONCE=${arg_ONCE}" -DSECONDS=${arg_SECONDS}
                   -P ${CMAKE_CURRENT_SOURCE_DIR}/run_program.cmake --
                   ${launch} $<TARGET_FILE:tessera_program> ${arg_ARGS})
  tessera_launch_environment(environment ${arg_RANKS})
  set_tests_properties(workflow.program.${name} PROPERTIES
    PROCESSORS ${arg_RANKS} TIMEOUT 120 LABELS "workflow;ranks-${arg_RANKS}"
    ENVIRONMENT "${environment};${arg_ENVIRONMENT}")
endfunction()

add_executable(damage_golden damage_golden.cpp)
target_link_libraries(damage_golden PRIVATE tessera::tessera)
tessera_warnings(damage_golden)
set(golden ${PROJECT_SOURCE_DIR}/tests/golden/triangle_multiplication_outgoing.safetensors)
set(damaged ${CMAKE_CURRENT_BINARY_DIR}/damaged)
file(MAKE_DIRECTORY ${damaged})
foreach(tensor IN ITEMS in.mask param.p_in.weight out.y gout.y grad_in.x grad_param.g_out.weight)
  add_custom_command(OUTPUT ${damaged}/no-${tensor}.safetensors
    COMMAND damage_golden ${golden} ${damaged}/no-${tensor}.safetensors ${tensor}
    DEPENDS damage_golden ${golden} VERBATIM)
  list(APPEND damaged_files ${damaged}/no-${tensor}.safetensors)
endforeach()
add_custom_target(damaged_goldens ALL DEPENDS ${damaged_files})

set(one_message "tessera: [A-Za-z]+Error")
tessera_program_test(version RANKS 1 CODE 0 TEXT "^${PROJECT_VERSION}" ARGS --version)
tessera_program_test(help RANKS 1 CODE 0 TEXT "parity" ARGS --help)
tessera_program_test(info RANKS 4 CODE 0 TEXT "ranks +4, default mesh 2x2" ONCE "MPI threads" ARGS info)
if(NOT TESSERA_MPI)
  tessera_program_test(no_mpi RANKS 1 CODE 0 TEXT "MPI +none \\(built without\\)\n.*\nranks +1," ARGS info)
endif()
tessera_program_test(list RANKS 1 CODE 0 TEXT "triangle_multiplication_incoming" ARGS parity --list)
tessera_program_test(golden RANKS 4 CODE 0 TEXT "golden" ONCE "4 of 4 hold"
                     ARGS parity --case triangle_* --kind golden)
tessera_program_test(parity RANKS 6 CODE 0 ONCE "4 of 4 hold"
                     ARGS parity --case triangle_* --kind parity --mesh 3x2)
tessera_program_test(one_rank RANKS 1 CODE 0 TEXT "as mesh 1x1" ARGS parity)
tessera_program_test(single_precision RANKS 4 CODE 0 TEXT "f32 on cpu" ARGS parity --dtype f32 --size small)
tessera_program_test(bfloat RANKS 4 CODE 0 TEXT "bf16 on cpu" ARGS parity --dtype bf16)
tessera_program_test(against_cpu RANKS 4 CODE 0 TEXT "f64 on imitation:0 against cpu.*linear +parity"
                     ARGS parity --device imitation --against cpu --kind parity --case linear)
tessera_program_test(bench_imitation RANKS 1 CODE 0 TEXT "f32 on imitation:0.*\nlinear .*no number here is a GPU's"
                     ARGS bench layer --device imitation --case linear --tokens 8 --channels 4 --product 64
                          --copied 1048576 --repeat 1)
tessera_program_test(failed_check RANKS 4 CODE 1 TEXT "FAIL.*differs by.*tolerance 1.0e-30"
                     ARGS parity --case triangle_* --tolerance 1e-30)

tessera_program_test(log RANKS 4 CODE 0 ENVIRONMENT TESSERA_LOG=info TEXT "tessera info, rank 0: [^\n]* 4 rank"
                     ONCE "rank 0: rank 0 of mesh dp=1 cp0=2 cp1=2 on cpu" ARGS parity --case linear --kind parity)
tessera_program_test(silence RANKS 4 CODE 0 ENVIRONMENT TESSERA_LOG=error
                     TEXT "^\n?tessera [0-9.]+ parity:.*Tolerance: parity 1.0e-11[.]\n+$"
                     ARGS parity --case linear --kind parity)
tessera_program_test(unknown_log_level RANKS 4 CODE 2 ONCE "${one_message}[^\n]*TESSERA_LOG[^\n]*'loud'"
                     ENVIRONMENT TESSERA_LOG=loud ARGS info)
# Values that variables cannot have.
foreach(setting IN ITEMS CHECK_FINITE=yes CUDA_AWARE=maybe IMITATION_DEVICES=many IMITATION_GUARD=on
                         IMITATION_MEMORY_MIB=0 ISA=v9 LOCKSTEP=2 REPORT_DIR=/nowhere/at/all THREADS=1.5 TIMEOUT_S=soon)
  string(REGEX REPLACE "=.*" "" name ${setting})
  string(REGEX REPLACE ".*=" "" value ${setting})
  tessera_program_test(wrong_${name} RANKS 2 CODE 2 ONCE "${one_message}[^\n]*TESSERA_${name}[^\n]*${value}"
                       ENVIRONMENT TESSERA_${setting}
                       ARGS parity --device imitation --case linear --kind parity)
endforeach()
# Somebody says it also where it is not on the first rank.
foreach(setting IN ITEMS IMITATION_MEMORY_MIB=0 LOG=loud REPORT_DIR=/nowhere/at/all)
  string(REGEX REPLACE "=.*" "" name ${setting})
  tessera_program_test(wrong_${name}_on_one RANKS 2 CODE 2 ON_RANK_1 TESSERA_${setting}
                       ONCE "tessera: rank 1 of 2: UsageError[^\n]*TESSERA_${name}"
                       ARGS parity --device imitation --case linear --kind parity)
endforeach()
tessera_program_test(wrong_THREADS_on_one RANKS 2 CODE 2 ON_RANK_1 TESSERA_THREADS=1.5
                     ONCE "${one_message}[^\n]*TESSERA_THREADS: rank 1 " ARGS info)
string(REPEAT x 300 long)  # more than a name may have
foreach(name IN ITEMS REPORT_DIR GOLDEN_DIR)
  tessera_program_test(long_${name} RANKS 2 CODE 2 ONCE "${one_message}[^\n]*TESSERA_${name}"
                       ENVIRONMENT TESSERA_${name}=/${long} ARGS parity --case linear)
endforeach()
foreach(bytes IN ITEMS 0 -1 1.5 many 9223372036854775808)
  tessera_program_test(wrong_chunk_bytes.${bytes} RANKS 1 CODE 2
                       ONCE "tessera: --chunk-bytes: '${bytes}' is not a whole number" ARGS parity --chunk-bytes ${bytes})
endforeach()
tessera_program_test(no_subcommand RANKS 1 CODE 2 ONCE "tessera: " ARGS)
tessera_program_test(unknown_option RANKS 4 CODE 2 ONCE "tessera: .*--nonsense" ARGS parity --nonsense)
tessera_program_test(unknown_case RANKS 4 CODE 2 ONCE "${one_message}[^\n]*did you mean 'transition'"
                     ARGS parity --case transitoin)
tessera_program_test(wrong_mesh RANKS 4 CODE 3 ONCE "${one_message}[^\n]*mesh 2x3 \\(6 ranks\\) on 4"
                     ARGS parity --mesh 2x3)
tessera_program_test(malformed_mesh RANKS 4 CODE 2 ONCE "${one_message}" ARGS parity --mesh 2by2)
tessera_program_test(one_channel RANKS 4 CODE 2 ONCE "${one_message}[^\n]*at least 2"
                     ARGS parity --kind parity --channels 1)
tessera_program_test(indivisible_tokens RANKS 4 CODE 2 ONCE "${one_message}[^\n]*13"
                     ARGS parity --kind parity --tokens 13)
tessera_program_test(indivisible_golden RANKS 5 CODE 2 ONCE "${one_message}[^\n]*12"
                     ARGS parity --kind golden --case triangle_*)
tessera_program_test(plain_file_as_golden RANKS 4 CODE 2 ONCE "${one_message}[^\n]*CMakeLists.txt"
                     ARGS parity --golden ${CMAKE_CURRENT_SOURCE_DIR}/CMakeLists.txt)
tessera_program_test(no_golden_folder RANKS 4 CODE 2 ONCE "${one_message}[^\n]*no such file"
                     ARGS parity --golden ${damaged}/nowhere)
foreach(tensor IN ITEMS in.mask param.p_in.weight out.y gout.y grad_in.x grad_param.g_out.weight)
  string(REGEX REPLACE "^param\\." "" word ${tensor})
  tessera_program_test(golden_without_${tensor} RANKS 4 CODE 2 ONCE "${one_message}[^\n]*${word}"
                       ARGS parity --golden ${damaged}/no-${tensor}.safetensors)
endforeach()
tessera_program_test(absent_device RANKS 4 CODE 3 ONCE "${one_message}[^\n]*CUDA" ARGS parity --device cuda)
tessera_program_test(gpu_info RANKS 4 CODE 0 ONCE "messages +staged through pinned host memory .*on imitation:0"
                     ARGS info --device imitation)
tessera_program_test(shared_gpus RANKS 4 CODE 3 ONCE "${one_message}[^\n]*4 ranks on a node with 2 GPU.*--oversubscribe-gpus"
                     ARGS parity --device imitation ENVIRONMENT TESSERA_IMITATION_DEVICES=2)
tessera_program_test(oversubscribed_gpus RANKS 4 CODE 0 ONCE "1 of 1 hold"
                     ARGS parity --device imitation --oversubscribe-gpus --case linear --kind parity
                     ENVIRONMENT TESSERA_IMITATION_DEVICES=2)
tessera_program_test(one_gpu_for_all RANKS 4 CODE 2 ONCE "${one_message}[^\n]*imitation:1 on 4 ranks"
                     ARGS parity --device imitation:1)
tessera_program_test(tf32_on_cpu RANKS 1 CODE 2 ONCE "${one_message}[^\n]*TF32"
                     ARGS parity --case linear --dtype f32 --tf32)
tessera_program_test(unwritable_json RANKS 4 CODE 2 ONCE "${one_message}[^\n]*nowhere"
                     ARGS parity --case linear --kind parity --json ${damaged}/nowhere/x.json)
tessera_program_test(launch_mistake RANKS 1 CODE 3 ONCE "${one_message}[^\n]*4"
                     ARGS parity ENVIRONMENT OMPI_COMM_WORLD_SIZE=4)

tessera_program_test(memory RANKS 4 CODE 0 TEXT "path +purpose +after forward +peak.*\n  linear +activation " ONCE "memory of linear .parity."
                     ARGS parity --memory --kind parity --case linear)
tessera_program_test(growth RANKS 4 CODE 0 TEXT "outgoing +saved .*2.000 +-1.000  pass.*incoming +saved .*2.000 +-1.000  pass"
                     ARGS parity --growth --case triangle_*)
tessera_program_test(unwritable_trace RANKS 4 CODE 2 ONCE "${one_message}[^\n]*--trace"
                     ARGS parity --case linear --kind parity --trace ${damaged}/nowhere/x.json)
tessera_program_test(report_without_file RANKS 1 CODE 2 ONCE "${one_message}[^\n]*nowhere.json"
                     ARGS report ${damaged}/nowhere.json)
tessera_program_test(report_of_something_else RANKS 1 CODE 2 ONCE "${one_message}[^\n]*not JSON"
                     ARGS report ${golden})
# What the program writes on 4 ranks, looked at by a script of that name.
function(tessera_program_script name seconds)
  add_test(NAME workflow.${name}
    COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:tessera_program>
            -DSCRATCH=${CMAKE_CURRENT_BINARY_DIR}/${name}
            "-DLAUNCH=${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 4 ${MPIEXEC_PREFLAGS}"
            -P ${CMAKE_CURRENT_SOURCE_DIR}/${name}.cmake)
  tessera_launch_environment(environment 4)
  set_tests_properties(workflow.${name} PROPERTIES PROCESSORS 4 TIMEOUT ${seconds}
    LABELS "workflow;ranks-4" ENVIRONMENT "${environment}")
endfunction()
if(TESSERA_MPI)
  tessera_program_script(report 150)
  tessera_program_script(devices 240)
endif()

# Pages of docs/ and the cases that they are made from.
function(tessera_page name cases)
  add_test(NAME workflow.program.${name}_page
           COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:tessera_program>
                   -DPAGE=${PROJECT_SOURCE_DIR}/docs/${name}.md -DCASES=${cases}
                   -DSCRATCH=${CMAKE_CURRENT_BINARY_DIR}
                   -P ${CMAKE_CURRENT_SOURCE_DIR}/compare_page.cmake)
  tessera_launch_environment(environment 1)
  set_tests_properties(workflow.program.${name}_page PROPERTIES
    TIMEOUT 120 LABELS "workflow;ranks-1" ENVIRONMENT "${environment}")
endfunction()
tessera_page(substrate "substrate.*")
tessera_page(trunk
  "triangle_*,transition,outer_product_mean,pair_weighted_averaging,attention_pair_bias_*,msa_module")
