#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chat/labeller.h"
#include "data/token_dataset.h"

namespace fastsft {

// A data set tokenised and labelled, with its report.
struct LabelledData {
  TokenDataset dataset;
  DataReport report;
  std::vector<DataFault> faults;  // records that cannot be labelled; they have no row
};

// Labels a FastChat data file, some thousand records at a time.
LabelledData label_file(const std::string& path, const Labeller& labeller);
// Labels records that are in memory already.
LabelledData label_conversations(const std::vector<Conversation>& conversations,
                                 const Labeller& labeller);

}  // namespace fastsft
