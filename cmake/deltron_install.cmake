# cmake --install: the binary, the libraries with headers, and a package config for find_package(deltron).
include(CMakePackageConfigHelpers)
get_property(deltron_layers GLOBAL PROPERTY DELTRON_LAYERS)
if(TARGET deltron)
  install(TARGETS deltron RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
