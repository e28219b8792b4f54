#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "chat/explain.h"
#include "data/label_data.h"

namespace fastsft {

// Selects the records of a data set to look at.
struct SurveyChoice {
  int64_t count = 5;              // at most so many
  std::optional<uint64_t> seed;   // random ones; without it the first
  std::optional<std::string> id;  // the record's id, or its number in its file
  // An action ("dropped"; what became of the record or of a part of it), "stopped", or a remark.
  std::optional<std::string> only;

  // Throws std::invalid_argument for a negative count, and for a word that `only` cannot be.
  void check() const;
};

struct SurveyedRecord {
  std::string file;
  Conversation conversation;
  Explanation explanation;
};

// Rows by a number of tokens.
using TokenHistogram = std::map<int64_t, int64_t>;

// Statistics of a whole labelled data set, without its rows. A record counts as often as its share
// says.
struct Survey {
  LabelSummary summary;
  TokenHistogram lengths;              // rows by tokens
  TokenHistogram learned;              // rows by learned tokens
  int64_t num_matching = 0;            // records that `id` and `only` allow, each once
  std::vector<SurveyedRecord> chosen;  // in the order of the data
};

// Labels the records as label_data does and explains the chosen ones. Memory is bounded by chunks,
// the chosen records and model_max_length. `poll` as label_data's.
Survey survey_data(std::vector<DataInput> inputs, const Labeller& labeller,
                   const SurveyChoice& choice, const PollProgress& poll);

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
