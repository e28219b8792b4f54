#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chat/data_report.h"
#include "chat/labeller.h"
#include "chat/reader.h"
#include "data/token_dataset.h"

namespace fastsft {

// A data set tokenised and labelled, with its report.
struct LabelledData {
  TokenDataset dataset;
  DataReport report;
  std::vector<DataFault> faults;  // records that stop the run; they have no row, as excluded ones
};

// Labels conversations that are in memory.
LabelledData label_conversations(const std::vector<Conversation>& conversations,
                                 const Labeller& labeller);

// Labels the records of a reader, some thousand at a time.
LabelledData label_records(ConversationReader& reader, const Labeller& labeller);

}  // namespace fastsft
