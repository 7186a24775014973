# cmake -DNM=... -DNAMESPACES=a;b -DOBJECTS=x.o;y.o -P isa_symbols.cmake
# Fails if an object offers the linker a symbol that may be merged (weak or unique) outside the
# given namespaces. Such a symbol exists once in the program, compiled for whichever instruction
# set came first.
execute_process(COMMAND ${NM} -C --defined-only ${OBJECTS} OUTPUT_VARIABLE text
                COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE ";" "|" own "${NAMESPACES}")
string(REPLACE ";" "," text "${text}")
string(REPLACE "\n" ";" lines "${text}")
set(seen 0)
set(escaped)
foreach(line IN LISTS lines)
  if(NOT line MATCHES "^[0-9a-f]+ [WVu] (.*)$")
    continue()
  endif()
  set(symbol "${CMAKE_MATCH_1}")
  math(EXPR seen "${seen} + 1")
  # The reference to the exception personality is a pointer, not code.
  if(NOT symbol MATCHES "(^|[^A-Za-z0-9_])(${own})::" AND NOT symbol MATCHES "^DW\\.ref\\.")
    string(APPEND escaped "  ${symbol}\n")
  endif()
endforeach()
if(escaped)
  message(FATAL_ERROR "symbols outside ${NAMESPACES} that the linker may merge:\n${escaped}")
endif()
if(seen EQUAL 0)
  message(FATAL_ERROR "no weak symbol at all: wrong objects?")
endif()
message(STATUS "${seen} weak symbols, all within ${NAMESPACES}")
