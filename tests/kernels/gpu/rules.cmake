# The delta rules on CUDA besides their GPU test: the same test without a GPU, where fibers on the CPU run the kernels
# (tests/support/cuda_emulation). Included from tests/kernels/CMakeLists.txt where the CUDA back end is built.
include(${PROJECT_SOURCE_DIR}/kernels/cuda/rule_sources.cmake)
list(TRANSFORM DELTRON_CUDA_RULE_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/kernels/)
set_source_files_properties(${DELTRON_CUDA_RULE_SOURCES} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS
  "-xc++;-include;${PROJECT_SOURCE_DIR}/tests/support/cuda_emulation/emulation.h;-fno-strict-aliasing;-O2;-w")
add_executable(test_kernels_cuda_emulated ${DELTRON_CUDA_RULE_SOURCES} gpu/delta_rule_test.cpp
  ${PROJECT_SOURCE_DIR}/tests/support/cuda_emulation/emulation.cpp)
target_include_directories(test_kernels_cuda_emulated PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_definitions(test_kernels_cuda_emulated PRIVATE DELTRON_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
target_link_libraries(test_kernels_cuda_emulated PRIVATE deltron::base nlohmann_json::nlohmann_json GTest::gtest_main deltron_options deltron_codegen)
if(NOT DELTRON_SANITIZE)  # fibers switch stacks behind a sanitizer's back
  add_test(NAME kernels_cuda_emulated COMMAND test_kernels_cuda_emulated
    --gtest_filter=*golden_files_bf16:*golden_files_fp16:*views_of_projections*:*misaligned*:*packed_document*:*first_decay*)
  set_tests_properties(kernels_cuda_emulated PROPERTIES LABELS unit TIMEOUT 600)
endif()

# The families whose kernels are launched through launch_kernel(), likewise, with the tests of their families.
set(DELTRON_EMULATED_STREAM_SOURCES)
foreach(family gdn_pre_rule multi_tensor reduce)
  list(APPEND DELTRON_EMULATED_STREAM_SOURCES ${PROJECT_SOURCE_DIR}/kernels/cuda/${family}.cu)
endforeach()
set_source_files_properties(${DELTRON_EMULATED_STREAM_SOURCES} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS
  "-xc++;-include;${PROJECT_SOURCE_DIR}/tests/support/cuda_emulation/emulation.h;-fno-strict-aliasing;-O1;-w")
add_executable(test_kernels_cuda_emulated_streams ${DELTRON_EMULATED_STREAM_SOURCES} gdn_pre_rule_test.cpp multi_tensor_test.cpp reduce_test.cpp
  ${PROJECT_SOURCE_DIR}/tests/support/cuda_emulation/emulation.cpp
  ${PROJECT_SOURCE_DIR}/tests/support/cuda_emulation/emulated_main.cpp)
target_include_directories(test_kernels_cuda_emulated_streams PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_definitions(test_kernels_cuda_emulated_streams PRIVATE DELTRON_SOURCE_DIR="${PROJECT_SOURCE_DIR}" DELTRON_TEST_ON_CUDA=1)
target_link_libraries(test_kernels_cuda_emulated_streams PRIVATE deltron::base deltron_hwy nlohmann_json::nlohmann_json GTest::gtest_main deltron_options
  deltron_codegen)
if(NOT DELTRON_SANITIZE)
  add_test(NAME kernels_cuda_emulated_streams COMMAND test_kernels_cuda_emulated_streams)
  add_test(NAME kernels_cuda_emulated_streams_aligned COMMAND test_kernels_cuda_emulated_streams --gtest_filter=GdnPreRule*)
  set_tests_properties(kernels_cuda_emulated_streams kernels_cuda_emulated_streams_aligned PROPERTIES LABELS unit TIMEOUT 600)
  set_tests_properties(kernels_cuda_emulated_streams_aligned PROPERTIES ENVIRONMENT DELTRON_TEST_ALIGNED=1)
endif()
