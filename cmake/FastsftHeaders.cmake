# pip builds in a new environment each time, whose headers have new paths and new times, so that everything
# would be compiled again. Their copies in the build directory, one for each version, keep both.

# fastsft_keep_headers(<variable> <package> <version> <directory>): the directory to include instead of <directory>.
function(fastsft_keep_headers variable package version directory)
  set(${variable} ${directory} PARENT_SCOPE)
  if(NOT SKBUILD OR version STREQUAL "") # no version: not of a package, perhaps all of /usr/include
    return()
  endif()
  set(kept ${CMAKE_BINARY_DIR}/headers/${package}-${version})
  if(NOT EXISTS ${kept}.complete)
    file(REMOVE_RECURSE ${kept})
    file(COPY ${directory}/ DESTINATION ${kept})
    file(TOUCH ${kept}.complete)
  endif()
  set(${variable} ${kept} PARENT_SCOPE)
endfunction()
