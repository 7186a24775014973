# The page in the repository is what the program writes:
#   cmake -DPROGRAM=tessera -DPAGE=docs/substrate.md -DSCRATCH=dir -P compare_page.cmake
execute_process(COMMAND ${PROGRAM} contracts --case "substrate.*" --markdown ${SCRATCH}/substrate.md
                RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err TIMEOUT 60)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "exit code ${code}: ${out}${err}")
endif()
file(READ ${SCRATCH}/substrate.md written)
file(READ ${PAGE} kept)
if(NOT written STREQUAL kept)
  message(FATAL_ERROR "${PAGE} is not what the program writes; refresh it with\n"
                      "  tessera contracts --case 'substrate.*' --markdown docs/substrate.md")
endif()
