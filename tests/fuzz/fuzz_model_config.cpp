// Fuzzes config.json. A text must be rejected with std::invalid_argument, or give sizes that a
// model can have.
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "model/config.h"

namespace {

void check(bool ok) {
  if (!ok) std::abort();
}

void check_promises(const fastsft::ModelConfig& config) {
  check(config.vocab_size > 0 && config.hidden_size > 0 && config.intermediate_size > 0);
  check(config.num_layers > 0 && config.num_heads > 0 && config.num_key_value_heads > 0);
  check(config.num_heads % config.num_key_value_heads == 0);
  check(config.head_dim > 0 && config.head_dim % 2 == 0 && config.qkv_size() > 0);
  check(config.windows.size() == static_cast<size_t>(config.num_layers));
  for (const int64_t window : config.windows) check(window >= 0);
  check(config.rope.theta > 0 && config.rope.scaling.frequencies);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    check_promises(
        fastsft::parse_model_config(std::string(reinterpret_cast<const char*>(data), size)));
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
