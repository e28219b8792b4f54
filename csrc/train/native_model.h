#pragma once

#include <memory>
#include <string>

#include "model/model.h"
#include "train/engine.h"

namespace fastsft {

// The CausalLM of a config.json. std::invalid_argument for what it does not compute.
std::unique_ptr<Model> native_model(const std::string& config_json, const EngineOptions& options);

}  // namespace fastsft
