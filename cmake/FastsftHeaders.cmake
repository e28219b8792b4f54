# pip builds in a new environment each time, whose headers have new paths and new times, so that everything
# would be compiled again. Their copies in the build directory, one for each version, keep both.

# fastsft_keep_headers(<variable> <package> <directory>): the directory to include instead of <directory>.
function(fastsft_keep_headers variable package directory)
  set(${variable} ${directory} PARENT_SCOPE)
  if(NOT SKBUILD)
    return()
  endif()
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import importlib.metadata as m; print(m.version('${package}'))"
    OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(kept ${CMAKE_BINARY_DIR}/headers/${package}-${version})
  if(NOT EXISTS ${kept}.complete)
    file(REMOVE_RECURSE ${kept})
    file(COPY ${directory}/ DESTINATION ${kept})
    file(TOUCH ${kept}.complete)
  endif()
  set(${variable} ${kept} PARENT_SCOPE)
endfunction()
