# The page in the repository is what the program writes:
#   cmake -DPROGRAM=tessera -DPAGE=docs/x.md "-DCASES=glob,glob" -DSCRATCH=dir -P compare_page.cmake
string(REPLACE "," ";" cases "${CASES}")
set(options "")
foreach(case IN LISTS cases)
  list(APPEND options --case ${case})
endforeach()
get_filename_component(name ${PAGE} NAME)
execute_process(COMMAND ${PROGRAM} contracts ${options} --markdown ${SCRATCH}/${name}
                RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err TIMEOUT 60)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "exit code ${code}: ${out}${err}")
endif()
file(READ ${SCRATCH}/${name} written)
file(READ ${PAGE} kept)
if(NOT written STREQUAL kept)
  string(REPLACE ";" " " command "${options}")
  message(FATAL_ERROR "${PAGE} is not what the program writes; refresh it with\n"
                      "  tessera contracts ${command} --markdown docs/${name}")
endif()
