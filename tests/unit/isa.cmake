# Instruction sets: test_isa with each one forced and on an old processor, and the symbols of the
# kernels' objects.
find_program(TESSERA_QEMU qemu-x86_64)
tessera_launch_environment(isa_environment 1)
get_property(TESSERA_ISAS GLOBAL PROPERTY TESSERA_ISAS)
set(isa_skip "unexpected exception with message:[ \n]*UsageError in TESSERA_ISA: the processor lacks"
             "^SKIPPED")

foreach(isa IN LISTS TESSERA_ISAS)
  add_test(NAME unit.isa.${isa} COMMAND unit.isa)
  set_tests_properties(unit.isa.${isa} PROPERTIES
    ENVIRONMENT "${isa_environment};TESSERA_ISA=${isa}")
  set(isa_tests ${isa_tests} unit.isa.${isa})
  if(NOT TESSERA_SANITIZERS)  # whose functions are weak and global
    add_test(NAME unit.isa_symbols.${isa}
      COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} "-DNAMESPACES=tessera::kernels_${isa};Eigen_${isa}"
              "-DOBJECTS=$<TARGET_OBJECTS:tessera_kernels_${isa}>"
              -P ${CMAKE_CURRENT_SOURCE_DIR}/isa_symbols.cmake)
    set(isa_tests ${isa_tests} unit.isa_symbols.${isa})
  endif()
endforeach()

if(NOT TESSERA_SANITIZERS)
  add_library(isa_control OBJECT isa_control.cpp)
  add_dependencies(tests.unit isa_control)
  add_test(NAME unit.isa_symbols.control
    COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DNAMESPACES=tessera::kernels_v2
            "-DOBJECTS=$<TARGET_OBJECTS:isa_control>"
            -P ${CMAKE_CURRENT_SOURCE_DIR}/isa_symbols.cmake)
  set_tests_properties(unit.isa_symbols.control PROPERTIES PASS_REGULAR_EXPRESSION "  escapes.int")
  set(isa_tests ${isa_tests} unit.isa_symbols.control)

  if(TESSERA_QEMU AND "v2" IN_LIST TESSERA_ISAS)
    add_test(NAME unit.isa.nehalem COMMAND ${TESSERA_QEMU} -cpu Nehalem $<TARGET_FILE:unit.isa>)
  else()
    add_test(NAME unit.isa.nehalem
      COMMAND ${CMAKE_COMMAND} -E echo "SKIPPED: qemu-x86_64 is not installed")
  endif()
  set_tests_properties(unit.isa.nehalem PROPERTIES ENVIRONMENT "${isa_environment}")
  set(isa_tests ${isa_tests} unit.isa.nehalem)
endif()

set_tests_properties(${isa_tests} PROPERTIES
  SKIP_REGULAR_EXPRESSION "${isa_skip}" LABELS "unit;ranks-1" TIMEOUT 300)
