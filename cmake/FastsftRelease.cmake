# A core is the extension for one torch. The ordinary build has one. A release has two, with CUDA kernels and without, of
# the same objects: they run on systems as old as manylinux_2_28 and lie in folders of their torch, of which a wheel has
# several (python/fastsft/runtime/cores.py).

# fastsft_finish_core(<target> <architectures of its CUDA kernels>): its build info, its link, its place in the wheel.
function(fastsft_finish_core target architectures)
  list(JOIN architectures "," names)
  add_library(${target}_build_info OBJECT ${PROJECT_SOURCE_DIR}/csrc/core/build_info.cpp)
  target_include_directories(${target}_build_info PRIVATE ${PROJECT_SOURCE_DIR}/csrc)
  target_compile_definitions(${target}_build_info PRIVATE FASTSFT_ARCHITECTURES="${names}")
  target_link_libraries(${target} PRIVATE ${target}_build_info)
  set(folder fastsft)
  set(packages "$ORIGIN/..")
  if(FASTSFT_RELEASE)
    set(kernels cpu)
    if(architectures)
      set(kernels cuda${torch_cuda_major})
    endif()
    set(folder fastsft/cores/torch${torch_minor}-${kernels})
    set(packages "$ORIGIN/../../..")
    fastsft_link_for_older_systems(${target} ${kernels})
  endif()
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${packages}/torch/lib")
  install(TARGETS ${target} LIBRARY DESTINATION ${folder})
endfunction()

function(fastsft_link_for_older_systems target kernels)
  if(NOT TARGET fastsft_older_system)
    add_library(fastsft_older_system OBJECT ${PROJECT_SOURCE_DIR}/cmake/older_system.c)
    target_compile_options(fastsft_older_system PRIVATE -O2 -fno-builtin -fexceptions)
  endif()
  target_link_libraries(${target} PRIVATE fastsft_older_system)
  # An older glibc has some functions in libdl and libpthread. The map shows whose libgcc.a was taken: that of another
  # compiler has another table of CPU features, with which other clones of functions would run.
  target_link_options(${target} PRIVATE -s -Wl,-Map=${CMAKE_BINARY_DIR}/${kernels}.map
    -Wl,--push-state,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0 -Wl,--pop-state)
endfunction()
