# cmake --install: the binary with the shared libraries that it was linked with, so that bin/ and lib/ run elsewhere (what they ask of the
# other machine: an x86-64 Linux with the C and C++ run-time libraries of this compiler or newer); the layers' static libraries, their headers (the source tree kept below include/deltron, so that
# #include "src/..." works for consumers too) and a package config for find_package(deltron).
# Exported: deltron::<layer> for every layer. Libraries of others are found anew by deltron_dependencies.cmake, which is installed
# with the config, so that the package holds no path of this machine.
include(CMakePackageConfigHelpers)
get_property(deltron_layers GLOBAL PROPERTY DELTRON_LAYERS)
set(deltron_config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/deltron)

if(TARGET deltron)
  set_target_properties(deltron PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  file(RELATIVE_PATH deltron_libraries_from_binary /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  # RPATH, not RUNPATH: it holds for what the bundled libraries need, too.
  set_target_properties(deltron PROPERTIES INSTALL_RPATH "$ORIGIN/${deltron_libraries_from_binary}")
  target_link_options(deltron PRIVATE -Wl,--disable-new-dtags)
  # The C and C++ run-time libraries stay the other machine's: libraries opened at run time (cuBLASLt, cuDNN, NCCL) may need newer ones.
  install(TARGETS deltron RUNTIME_DEPENDENCIES
      PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|stdc\\+\\+|gcc_s)\\.so" "^lib(cuda|nvidia)"
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/deltron)
  if(DELTRON_HAVE_CUDNN AND EXISTS ${DELTRON_CUDNN_FRONTEND_INCLUDE}/../licenses)
    install(DIRECTORY ${DELTRON_CUDNN_FRONTEND_INCLUDE}/../licenses/ DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/deltron/cudnn-frontend)
  endif()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/deltron FILES_MATCHING PATTERN "*.yaml")
  install(CODE "set(deltron_binary \"${CMAKE_INSTALL_BINDIR}/deltron\")\nset(deltron_notices \"${CMAKE_INSTALL_DATADIR}/doc/deltron\")")
  install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/install_notices.cmake)
endif()

set_target_properties(deltron_options PROPERTIES EXPORT_NAME options)
set_target_properties(deltron_codegen PROPERTIES EXPORT_NAME codegen)
foreach(layer IN LISTS deltron_layers)
  string(REGEX REPLACE "^deltron_" "" name ${layer})
  set_target_properties(${layer} PROPERTIES EXPORT_NAME ${name})
endforeach()
install(TARGETS deltron_options deltron_codegen ${deltron_layers} EXPORT deltron_targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT deltron_targets NAMESPACE deltron:: DESTINATION ${deltron_config_folder} FILE deltronTargets.cmake)

foreach(folder src kernels distributed)
  if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/${folder})
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/deltron
      FILES_MATCHING PATTERN "*.h" PATTERN "*.def")
  endif()
endforeach()
install(DIRECTORY ${PROJECT_BINARY_DIR}/generated/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/deltron FILES_MATCHING PATTERN "*.h")

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/deltronConfig.cmake.in ${PROJECT_BINARY_DIR}/deltronConfig.cmake
  INSTALL_DESTINATION ${deltron_config_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/deltronConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/deltronConfig.cmake ${PROJECT_BINARY_DIR}/deltronConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/deltron_dependencies.cmake DESTINATION ${deltron_config_folder})
