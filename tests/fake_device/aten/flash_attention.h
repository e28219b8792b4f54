#pragma once

#include <torch/library.h>

namespace fake_device {

// Registers _flash_attention_forward and _flash_attention_backward, of conversations end to end.
void replace_flash_attention(torch::Library& library);

}  // namespace fake_device
