# A core of a release wheel, which has several: for each torch, with CUDA kernels and without them. It runs on systems as
# old as manylinux_2_28 and lies in a folder of its torch (python/fastsft/runtime/cores.py). Its objects are those of the
# ordinary build.

# fastsft_install_core(<target>): where the wheel has it, and where it finds torch.
function(fastsft_install_core target)
  set(folder fastsft)
  set(to_packages "$ORIGIN/..")
  if(FASTSFT_RELEASE)
    set(kernels cpu)
    if(FASTSFT_USE_CUDA)
      set(kernels cuda${torch_cuda_major})
    endif()
    set(folder fastsft/cores/torch${torch_minor}-${kernels})
    set(to_packages "$ORIGIN/../../..")
    fastsft_link_for_older_systems(${target})
  endif()
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${to_packages}/torch/lib")
  install(TARGETS ${target} LIBRARY DESTINATION ${folder})
endfunction()

function(fastsft_link_for_older_systems target)
  add_library(fastsft_older_system OBJECT ${PROJECT_SOURCE_DIR}/cmake/older_system.c)
  target_compile_options(fastsft_older_system PRIVATE -O2 -fno-builtin -fexceptions)
  target_link_libraries(${target} PRIVATE fastsft_older_system)
  # An older glibc has some functions in libdl and libpthread. The map shows whose libgcc.a was taken: that of another
  # compiler has another table of CPU features, with which other clones of functions would run.
  target_link_options(${target} PRIVATE -s -Wl,-Map=${CMAKE_BINARY_DIR}/core.map
    -Wl,--push-state,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0 -Wl,--pop-state)
endfunction()
