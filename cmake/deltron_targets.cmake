# deltron_layer(target): settings of every layer's library.  deltron_test(name ...): one test binary a layer.
add_library(deltron_options INTERFACE)
target_include_directories(deltron_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated> $<INSTALL_INTERFACE:include/deltron>)
target_compile_features(deltron_options INTERFACE cxx_std_20)

# -Wno-restrict: g++ 12 reports it falsely on std::string concatenation (GCC bug 105651).
add_library(deltron_warnings INTERFACE)
target_compile_options(deltron_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${DELTRON_WERROR}>>:-Werror>)

# Contraction of a*b+c into one rounding is decided in the source (Highway's MulAdd), never by the compiler's mood.
add_library(deltron_codegen INTERFACE)
target_compile_options(deltron_codegen INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(DELTRON_SANITIZE)
  target_compile_options(deltron_codegen INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${DELTRON_SANITIZE} -fno-omit-frame-pointer -g>)
  target_link_options(deltron_codegen INTERFACE -fsanitize=${DELTRON_SANITIZE})
endif()
if(DELTRON_FUZZ)
  target_compile_options(deltron_codegen INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

function(deltron_layer target)
  string(REGEX REPLACE "^deltron_" "" name ${target})
  add_library(deltron::${name} ALIAS ${target})
  target_link_libraries(${target} PUBLIC deltron_options deltron_codegen PRIVATE $<BUILD_INTERFACE:deltron_warnings>)
  add_dependencies(${target} deltron_version)
  set_property(GLOBAL APPEND PROPERTY DELTRON_LAYERS ${target})
endfunction()

# deltron_test(NAME SOURCES ... LIBRARIES ... [LABELS unit] [TIMEOUT 300])
function(deltron_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(DELTRON_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 10")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} GTest::gtest_main GTest::gmock deltron_options deltron_codegen deltron_warnings)
  target_compile_definitions(${name} PRIVATE DELTRON_SOURCE_DIR="${PROJECT_SOURCE_DIR}" DELTRON_BINARY_DIR="${PROJECT_BINARY_DIR}")
  gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60 PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()

# deltron_gpu_test(NAME SOURCES ... LIBRARIES ... [ONE_LAYOUT]): a binary whose tests need a GPU (tests/support/gpu_main.cpp), one ctest
# entry a layout of buffers; ONE_LAYOUT where the tests lay theirs out themselves.
function(deltron_gpu_test name)
  cmake_parse_arguments(ARG "ONE_LAYOUT" "TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES} ${PROJECT_SOURCE_DIR}/tests/support/gpu_main.cpp)
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} GTest::gtest GTest::gmock deltron_options deltron_codegen deltron_warnings)
  target_compile_definitions(${name} PRIVATE DELTRON_SOURCE_DIR="${PROJECT_SOURCE_DIR}" DELTRON_BINARY_DIR="${PROJECT_BINARY_DIR}")
  set(layouts aligned unaligned)
  if(ARG_ONE_LAYOUT)
    set(layouts aligned)
  endif()
  foreach(layout IN LISTS layouts)
    add_test(NAME ${name}.${layout} COMMAND ${name})
    set_tests_properties(${name}.${layout} PROPERTIES LABELS gpu TIMEOUT ${ARG_TIMEOUT} SKIP_REGULAR_EXPRESSION "no GPU")
  endforeach()
  set_property(TEST ${name}.aligned APPEND PROPERTY ENVIRONMENT DELTRON_TEST_ALIGNED=1)
endfunction()
