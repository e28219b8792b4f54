# One program for each tests/fuzz/fuzz_<target>.cpp, on fastsft_base. With clang it is a libFuzzer
# program; otherwise tests/fuzz/mutation_driver.cpp drives the same function. Use with
# -DFASTSFT_SANITIZE=ON.
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Without it libFuzzer sees the edges of the target's own file only and mutates blindly.
  target_compile_options(fastsft_base PRIVATE -fsanitize=fuzzer-no-link)
endif()
file(GLOB fuzz_targets CONFIGURE_DEPENDS tests/fuzz/fuzz_*.cpp)
add_custom_target(fuzz)
foreach(source ${fuzz_targets})
  get_filename_component(name ${source} NAME_WE)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    add_executable(${name} ${source})
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  else()
    add_executable(${name} ${source} tests/fuzz/mutation_driver.cpp)
  endif()
  target_include_directories(${name} PRIVATE tests/fuzz)
  target_link_libraries(${name} PRIVATE fastsft_base)
  add_dependencies(fuzz ${name})
endforeach()

# The work on data files is of the engine, but knows no tensors.
foreach(name input_walk label_data token_dataset)
  target_sources(fuzz_labels PRIVATE csrc/data/${name}.cpp)
endforeach()

# Configurations are of the engine; of tensors they know the factors of rotary frequencies.
foreach(name config config_fields families linears rope_scaling)
  target_sources(fuzz_model_config PRIVATE csrc/model/${name}.cpp)
endforeach()
target_link_libraries(fuzz_model_config PRIVATE fastsft::torch)
