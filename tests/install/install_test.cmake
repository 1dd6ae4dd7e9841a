# The steps of the install test: install, move the prefix, configure, build and run the consumer. Any failing step fails the test.
file(REMOVE_RECURSE ${WORK})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
# A moved prefix shows that the package holds no path of its own.
file(RENAME ${WORK}/first ${WORK}/prefix)

file(GLOB package_files ${WORK}/prefix/${LIBRARY_FOLDER}/cmake/deltron/*.cmake)
if(NOT package_files)
  message(FATAL_ERROR "no package config below ${WORK}/prefix/${LIBRARY_FOLDER}/cmake/deltron")
endif()
foreach(file IN LISTS package_files)
  file(READ ${file} text)
  string(FIND "${text}" "${SOURCE_TREE}/" place)
  if(NOT place EQUAL -1)
    message(FATAL_ERROR "${file} refers to the source tree ${SOURCE_TREE}")
  endif()
endforeach()

execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER}
  -DCMAKE_PREFIX_PATH=${WORK}/prefix -DEXPECTED_VERSION=${VERSION} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/build COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/build/consumer OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
string(STRIP "${output}" output)
if(NOT output STREQUAL "deltron ${VERSION}: 1.00 KiB")
  message(FATAL_ERROR "the consumer printed '${output}'")
endif()

if(EXISTS ${WORK}/prefix/bin/deltron)
  execute_process(COMMAND ${WORK}/prefix/bin/deltron --version OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  if(NOT output MATCHES "${VERSION}")
    message(FATAL_ERROR "deltron --version printed '${output}', which lacks ${VERSION}")
  endif()
endif()
