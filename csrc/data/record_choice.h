#pragma once

#include <map>
#include <string>
#include <vector>

#include "data/survey_data.h"

namespace fastsft {

// Holds the chosen ones of the records that it is shown one after the other: those with the
// smallest keys, which are their places in order, or random.
class RecordChoice {
 public:
  explicit RecordChoice(const SurveyChoice& choice) : choice_(choice) {}

  void show(const std::string& file, const LabelledRecord& labelled, Conversation& conversation);

  int64_t num_matching() const { return num_matching_; }
  // The records in the order in which they were shown; nothing is left here.
  std::vector<SurveyedRecord> take();

 private:
  struct Held {
    int64_t place;
    std::string file;
    Conversation conversation;
  };

  const SurveyChoice& choice_;
  int64_t num_shown_ = 0;
  int64_t num_matching_ = 0;
  std::map<uint64_t, Held> held_;  // by key
};

}  // namespace fastsft
