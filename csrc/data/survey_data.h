#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "chat/explain.h"
#include "data/label_data.h"

namespace fastsft {

// Selection of records for a survey.
struct SurveyChoice {
  int64_t count = 5;  // largest record count
  // seed for a random choice; without it the first records are chosen
  std::optional<uint64_t> seed;
  std::optional<std::string> id;  // the record's id, or its number in its file
  // Name of an outcome or remark: an action on the record or on a part (such as "dropped"), a
  // remark, or "stopped".
  std::optional<std::string> only;
  // Choose whole records: a record that becomes several rows counts once.
  bool whole = false;

  // Throws std::invalid_argument for a negative count, or if `only` is no known name.
  void check() const;
};

struct SurveyedRecord {
  std::string file;
  Conversation conversation;
  Explanation explanation;
  // For `whole`: all rows of the record, and the record itself (conversation_json.h).
  std::vector<Explanation> rows;
  std::string json;
};

// Maps a token count to a row count.
using TokenHistogram = std::map<int64_t, int64_t>;

// Statistics on a whole labelled data set, without its rows. A record counts as often as its file's
// weight says.
struct Survey {
  LabelSummary summary;
  TokenHistogram lengths;              // row counts by row length
  TokenHistogram learned;              // row counts by learned tokens
  int64_t num_matching = 0;            // records that match `id` and `only`, each counted once
  std::vector<SurveyedRecord> chosen;  // chosen records in data order
};

// Labels the records as label_data does, and explains the chosen records. Memory is bounded by the
// chunks in progress, the chosen records and model_max_length. `poll`: as in label_data.
Survey survey_data(std::vector<DataInput> inputs, const Labeller& labeller,
                   const SurveyChoice& choice, const PollProgress& poll);

// Chooses records from a stream. Keeps the records with the smallest keys; a key is the record's
// index or, with a seed, a random number.
class RecordChoice {
 public:
  explicit RecordChoice(const SurveyChoice& choice) : choice_(choice) {}

  // `rows`: the record's rows.
  void show(const std::string& file, std::span<const LabelledRecord> rows,
            Conversation& conversation);

  int64_t num_matching() const { return num_matching_; }
  // Moves the chosen records out, in the order in which they were shown.
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
  std::map<uint64_t, Held> held_;  // chosen records by key
};

}  // namespace fastsft
