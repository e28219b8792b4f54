# What every target is compiled with, and the JSON headers from PyPI. -O3, or the level that is the target's
# property FASTSFT_OPTIMIZATION: an option of the target itself would come before these and not count.
add_library(fastsft_options INTERFACE)
add_library(fastsft::options ALIAS fastsft_options)
target_compile_options(fastsft_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-unused-parameter -ffp-contract=fast -fno-math-errno>
  "$<$<COMPILE_LANGUAGE:CXX>:-O$<IF:$<STREQUAL:$<TARGET_PROPERTY:FASTSFT_OPTIMIZATION>,>,3,$<TARGET_PROPERTY:FASTSFT_OPTIMIZATION>>>")
if(FASTSFT_WARNINGS_AS_ERRORS)
  target_compile_options(fastsft_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(FASTSFT_SANITIZE)
  target_compile_options(fastsft_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined -fno-omit-frame-pointer>)
  target_link_options(fastsft_options INTERFACE -fsanitize=address,undefined)
endif()

execute_process(
  COMMAND ${Python_EXECUTABLE} -c
    "import importlib.metadata as m, importlib.util as u; s = u.find_spec('nlohmann_json'); print(s.submodule_search_locations[0] if s else '', m.version('nlohmann_json') if s else '', sep=';')"
  OUTPUT_VARIABLE nlohmann_probe OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
list(GET nlohmann_probe 0 nlohmann_dir)
list(GET nlohmann_probe 1 nlohmann_version)
find_path(NLOHMANN_JSON_INCLUDE_DIR nlohmann/json.hpp HINTS ${nlohmann_dir}/include REQUIRED)
add_library(fastsft_json INTERFACE)
add_library(fastsft::json ALIAS fastsft_json)
fastsft_keep_headers(json_headers nlohmann_json "${nlohmann_version}" ${NLOHMANN_JSON_INCLUDE_DIR})
target_include_directories(fastsft_json SYSTEM INTERFACE ${json_headers})
