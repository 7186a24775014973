# The documentation: links, variables and quoted sources are right, every command runs, and the
# comments of the public headers are an API reference without a warning.
find_package(Python3 COMPONENTS Interpreter)
if(NOT Python3_FOUND)
  return()
endif()
set(docs ${CMAKE_CURRENT_SOURCE_DIR}/docs)
file(GLOB pages CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/docs/*.md ${PROJECT_SOURCE_DIR}/tools/examples/*/README.md)

add_test(NAME workflow.docs.pages COMMAND Python3::Interpreter ${docs}/pages.py ${PROJECT_SOURCE_DIR})
set(commands Python3::Interpreter ${docs}/commands.py --source ${PROJECT_SOURCE_DIR}
    --build ${PROJECT_BINARY_DIR} --prefix ${TESSERA_INSTALLED}/prefix
    --scratch ${CMAKE_CURRENT_BINARY_DIR}/docs)
add_test(NAME workflow.docs.commands COMMAND ${commands} ${PROJECT_SOURCE_DIR}/README.md ${pages})
# A page with wrong commands must be noticed.
add_test(NAME workflow.docs.wrong_commands COMMAND ${commands}/wrong ${docs}/wrong.md)
set_tests_properties(workflow.docs.wrong_commands PROPERTIES
  PASS_REGULAR_EXPRESSION "1 blocks run, 3 failed" )
tessera_launch_environment(environment 4)
set_tests_properties(workflow.docs.pages workflow.docs.commands workflow.docs.wrong_commands PROPERTIES
  LABELS "workflow;ranks-4" TIMEOUT 600 PROCESSORS 4 ENVIRONMENT "${environment}")
set_tests_properties(workflow.docs.commands PROPERTIES FIXTURES_REQUIRED installed)

find_package(Doxygen)
if(DOXYGEN_FOUND)
  set(DOXYGEN_HEADERS ${TESSERA_INSTALLED}/prefix/include/tessera)
  set(DOXYGEN_OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/api)
  configure_file(${PROJECT_SOURCE_DIR}/docs/api/Doxyfile.in Doxyfile @ONLY)
  file(MAKE_DIRECTORY ${DOXYGEN_OUTPUT})
  add_test(NAME workflow.docs.api COMMAND Doxygen::doxygen ${CMAKE_CURRENT_BINARY_DIR}/Doxyfile)
  set_tests_properties(workflow.docs.api PROPERTIES
    LABELS "workflow;ranks-1" TIMEOUT 300 FIXTURES_REQUIRED installed)
endif()
