#pragma once

#include <memory>
#include <string>

#include "model/model.h"
#include "shard/communicator.h"
#include "train/engine.h"

namespace fastsft {

// Returns the model that an engine computes with: `generic`, or if it is null the native model of a
// configuration. Throws std::invalid_argument for options that the model lacks, and unless
// context_parallel_size is the number of context ranks.
std::unique_ptr<Model> make_model(const std::string& config_json, const EngineOptions& options,
                                  RankGroups& groups, std::unique_ptr<Model> generic);

}  // namespace fastsft
