# Writes build/generated/src/base/version.h from src/base/version.h.in. Included by CMakeLists.txt it sets the build step up; run
# as a script (cmake -P) it is that step. The commit comes from git in a clone, from archive_commit.txt in a `git archive` tarball.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  string(STRIP "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${type}}" flags)
  if(DELTRON_SANITIZE)
    string(APPEND flags " -fsanitize=${DELTRON_SANITIZE}")
  endif()
  set(cuda none)
  if(DELTRON_HAVE_CUDA)
    set(cuda ${CMAKE_CUDA_COMPILER_VERSION})
  endif()
  set(deltron_version_command ${CMAKE_COMMAND}
    -D SOURCE=${PROJECT_SOURCE_DIR} -D OUTPUT=${PROJECT_BINARY_DIR}/generated/src/base/version.h
    -D DELTRON_VERSION=${PROJECT_VERSION} "-D DELTRON_COMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
    -D DELTRON_BUILD_TYPE=${CMAKE_BUILD_TYPE} "-D DELTRON_COMPILE_FLAGS=${flags}" -D DELTRON_CUDA_VERSION=${cuda}
    -P ${PROJECT_SOURCE_DIR}/cmake/version.cmake)
  execute_process(COMMAND ${deltron_version_command} COMMAND_ERROR_IS_FATAL ANY)
  add_custom_target(deltron_version COMMAND ${deltron_version_command}
    BYPRODUCTS ${PROJECT_BINARY_DIR}/generated/src/base/version.h COMMENT "version.h" VERBATIM)
  return()
endif()

set(DELTRON_GIT_HASH unknown)
file(STRINGS ${SOURCE}/cmake/archive_commit.txt archive_commit)
find_program(GIT git)
if(archive_commit MATCHES "^[0-9a-f]+$")
  set(DELTRON_GIT_HASH ${archive_commit})
elseif(GIT AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse HEAD OUTPUT_VARIABLE commit ERROR_QUIET RESULT_VARIABLE failed
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT failed)
    set(DELTRON_GIT_HASH ${commit})
    execute_process(COMMAND ${GIT} -C ${SOURCE} diff --quiet HEAD RESULT_VARIABLE changed ERROR_QUIET)
    if(changed)
      string(APPEND DELTRON_GIT_HASH "+")
    endif()
  endif()
endif()
configure_file(${SOURCE}/src/base/version.h.in ${OUTPUT} @ONLY)
