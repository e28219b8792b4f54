#pragma once

#include <functional>
#include <vector>

#include "chat/conversation.h"
#include "chat/data_report.h"
#include "tokenizer/tokenizer.h"

namespace fastsft {

// Turns records into labelled examples by FastChat's rules, several threads over conversations.
// What comes out does not depend on the number of threads.
class Labeller {
 public:
  // Rows are at most `max_length` ids long; `pad_id` is what would fill them up. `num_threads` 0
  // takes as many as the machine has cores, eight at most.
  Labeller(const Tokenizer& tokenizer, const ChatTemplate& chat_template, int64_t max_length,
           int32_t pad_id, int num_threads);

  // `first_record` is the number of the first conversation in its data set.
  std::vector<LabelledRecord> label(const std::vector<Conversation>& conversations,
                                    int64_t first_record) const;

 private:
  LabelledRecord label_one(const Conversation& conversation, int64_t number,
                           Transcript& transcript) const;

  const Tokenizer& tokenizer_;
  const ChatTemplate& chat_template_;
  int64_t max_length_;
  int32_t pad_id_;
  int num_threads_;
};

}  // namespace fastsft
