# libtorch is the installed torch wheel, linked directly: torch's own CMake package refuses to configure
# without a CUDA toolkit when the wheel is a CUDA build.
execute_process(
  COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/scripts/metadata/installed_torch.py
  OUTPUT_VARIABLE torch_probe OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
list(GET torch_probe 0 FASTSFT_TORCH_DIR)
list(GET torch_probe 1 FASTSFT_TORCH_VERSION)
# The range of releases: two lines of one file, which Python reads as well.
set(torch_versions ${CMAKE_CURRENT_SOURCE_DIR}/python/fastsft/runtime/versions.py)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${torch_versions})
foreach(end FIRST LAST)
  file(STRINGS ${torch_versions} line REGEX "^TORCH_${end} = ")
  string(REGEX MATCH "[0-9]+\\.[0-9]+" torch_${end} "${line}")
  if(NOT torch_${end})
    message(FATAL_ERROR "${torch_versions}: expected a line TORCH_${end} = \"2.11\", found none")
  endif()
endforeach()
string(REGEX MATCH "^[0-9]+\\.[0-9]+" torch_minor "${FASTSFT_TORCH_VERSION}")
if(NOT FASTSFT_TORCH_DIR)
  message(FATAL_ERROR "torch is not installed for ${Python_EXECUTABLE}: install one of ${torch_FIRST} to ${torch_LAST}")
endif()
if(torch_minor VERSION_LESS torch_FIRST OR torch_minor VERSION_GREATER torch_LAST)
  message(FATAL_ERROR "fastsft goes with torch ${torch_FIRST} to ${torch_LAST}, found ${FASTSFT_TORCH_VERSION} in ${FASTSFT_TORCH_DIR}")
endif()
set(torch_lib ${FASTSFT_TORCH_DIR}/lib)
file(STRINGS ${FASTSFT_TORCH_DIR}/version.py torch_cuda_line REGEX "^cuda.*= *'[0-9.]+'")
string(REGEX MATCH "[0-9]+\\.[0-9]+" FASTSFT_TORCH_CUDA_VERSION "${torch_cuda_line}")
set(FASTSFT_TORCH_HAS_CUDA OFF)
if(EXISTS ${torch_lib}/libtorch_cuda.so)
  set(FASTSFT_TORCH_HAS_CUDA ON)
endif()
# torch's own OpenMP runtime: a second one would leave at::parallel_for on one thread. `.so.1` in the
# wheels of 2.11, `libgomp-<hash>.so.1` in others: a release, for all of them, finds it as a library of libtorch_cpu.
file(GLOB torch_gomp ${torch_lib}/libgomp*.so* ${FASTSFT_TORCH_DIR}/../torch.libs/libgomp*.so*)
if(NOT torch_gomp)
  message(FATAL_ERROR "no libgomp in ${torch_lib}: fastsft links the OpenMP runtime of torch's own wheels; install torch from PyPI")
endif()
list(GET torch_gomp 0 torch_gomp)
if(FASTSFT_RELEASE)
  set(torch_gomp "")
endif()

add_library(fastsft_torch INTERFACE)
add_library(fastsft::torch ALIAS fastsft_torch)
fastsft_keep_headers(torch_headers torch "${FASTSFT_TORCH_VERSION}-cuda${FASTSFT_TORCH_CUDA_VERSION}"
  ${FASTSFT_TORCH_DIR}/include)
target_include_directories(fastsft_torch SYSTEM INTERFACE ${torch_headers}
  ${torch_headers}/torch/csrc/api/include)
target_compile_definitions(fastsft_torch INTERFACE AT_PER_OPERATOR_HEADERS USE_DISTRIBUTED USE_C10D_GLOO)
target_compile_options(fastsft_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
target_link_libraries(fastsft_torch INTERFACE ${torch_lib}/libtorch.so ${torch_lib}/libtorch_cpu.so
  ${torch_lib}/libc10.so ${torch_gomp})

add_library(fastsft_torch_python INTERFACE)
add_library(fastsft::torch_python ALIAS fastsft_torch_python)
target_link_libraries(fastsft_torch_python INTERFACE fastsft_torch ${torch_lib}/libtorch_python.so)
