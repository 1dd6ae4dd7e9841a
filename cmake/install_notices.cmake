# Run by cmake --install: puts the licence notices of the bundled libraries beside ours, where the machine's packages keep them.
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${deltron_binary}"
  RESOLVED_DEPENDENCIES_VAR libraries UNRESOLVED_DEPENDENCIES_VAR missing
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|stdc\\+\\+|gcc_s)\\.so" "^lib(cuda|nvidia)")
foreach(library IN LISTS libraries)
  get_filename_component(file ${library} NAME)
  string(REGEX REPLACE "^(.*)\\.so\\.([0-9.]+)$" "\\1" name ${file})
  string(REGEX REPLACE "^.*\\.so\\.([0-9.]+)$" "\\1" version ${file})
  foreach(package IN ITEMS ${name}${version} ${name}-${version} ${name})
    if(EXISTS /usr/share/doc/${package}/copyright)
      file(INSTALL /usr/share/doc/${package}/copyright DESTINATION "${CMAKE_INSTALL_PREFIX}/${deltron_notices}" RENAME copyright.${name})
      break()
    endif()
  endforeach()
endforeach()
