// Fuzzes data files through to labels, with drawn settings and a stand-in for a model's own
// template. Labels must be ids or -100, ids must spell the transcript, only replies may be learned,
// and settings that learn less must learn a part. Batches and threads must not change anything, and
// errors must name the record.
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chunk_parser.h"
#include "chat/conversation_json.h"
#include "chat/explain.h"
#include "chat/labeller.h"
#include "chat/record_reader.h"
#include "core/error.h"
#include "data/label_data.h"
#include "drawn_options.h"
#include "field_renderer.h"
#include "fuzz_check.h"
#include "label_checks.h"
#include "pair_tokenizer.h"
#include "storage/crc32c.h"

namespace {

using fastsft::Conversation;
using fastsft::LabelledRecord;
using fastsft::Labeller;
using fastsft::LabelOptions;
using fastsft::fuzz::check;

struct Outcome {
  std::string error;
  std::vector<Conversation> records;  // or the pieces of records
  std::vector<LabelledRecord> labelled;
};

void check_read(const std::vector<Conversation>& records) {
  static const fastsft::RoleNames roles(true, {});
  for (const Conversation& record : records) {
    fastsft::fuzz::check_json(fastsft::conversation_json(record, roles));
    for (const fastsft::Message& message : record.messages) {
      if (!message.extras) continue;
      for (const std::string* json :
           {&message.extras->calls, &message.extras->reasoning, &message.extras->call_id,
            &message.extras->name, &message.extras->content}) {
        if (!json->empty()) fastsft::fuzz::check_json(*json);
      }
    }
  }
}

// Returns the data format that a run finds for a small file.
fastsft::FormatChoice find_format(std::string_view text) {
  fastsft::TextSource source{std::string(text)};
  fastsft::RecordChunk chunk;
  try {
    if (!fastsft::RecordReader(source, "data").next(chunk)) return {};
  } catch (const std::invalid_argument&) {
    return {};
  }
  return fastsft::choose_format(chunk, fastsft::kAutoFormat);
}

// Labels the records of each chunk together. `block_size`: bytes per read, and so the batch size.
Outcome label(std::string_view text, size_t block_size, const Labeller& labeller) {
  Outcome outcome;
  fastsft::TextSource source{std::string(text)};
  fastsft::RecordReader reader(source, "data", block_size);
  fastsft::ChunkParser parser("data", find_format(text));
  fastsft::RecordChunk chunk;
  std::vector<Conversation> records;
  const auto parse_next = [&] {
    try {
      if (!reader.next(chunk)) return false;
      parser.parse(chunk, fastsft::Share(), records);
      return true;
    } catch (const std::invalid_argument& error) {
      outcome.error = error.what();
      return false;
    }
  };
  while (parse_next()) {
    check_read(records);
    labeller.split(records);
    for (LabelledRecord& record : labeller.label(records)) {
      outcome.labelled.push_back(std::move(record));
    }
    for (Conversation& record : records) outcome.records.push_back(std::move(record));
  }
  check(outcome.records.size() == outcome.labelled.size());
  check(outcome.error.empty() || outcome.error.starts_with("data: "));
  return outcome;
}

void check_same(const Outcome& a, const Outcome& b) {
  if (!a.error.empty() || !b.error.empty()) return check(!a.error.empty() && !b.error.empty());
  check(a.labelled.size() == b.labelled.size());
  for (size_t i = 0; i < a.labelled.size(); ++i) {
    check(fastsft::fuzz::is_same(a.labelled[i], b.labelled[i]));
  }
}

// Aborts unless the threads of a run make the same rows and the same report.
void check_run(std::string_view text, const Outcome& expected, const Labeller& labeller) {
  fastsft::TextSource source{std::string(text)};
  fastsft::DataInput input;
  input.name = "data";
  input.source = &source;
  fastsft::MemorySink sink;
  fastsft::LabelSummary summary;
  try {
    summary = fastsft::label_data({input}, labeller, sink, {});
  } catch (const std::invalid_argument&) {
    return check(!expected.error.empty());
  }
  check(expected.error.empty());
  fastsft::TokenDataset rows;
  fastsft::DataReport report;
  int64_t num_faults = 0;
  for (const LabelledRecord& record : expected.labelled) {
    if (record.has_row()) rows.append(record.labels.example);
    if (record.faults.empty()) report.add(record);
    num_faults += !record.faults.empty();
  }
  report.set_formats(summary.report.formats());
  check(rows.checksum() == sink.dataset.checksum() && num_faults == summary.num_faults);
  check(report.to_json() == summary.report.to_json());
  check(fastsft::DataReport::from_json(report.to_json()).to_json() == report.to_json());
}

void check_records(const Outcome& outcome, const Labeller& labeller) {
  const LabelOptions& options = labeller.options();
  const bool is_spans = options.mask_policy == fastsft::MaskPolicy::kSpans;
  for (size_t i = 0; i < outcome.labelled.size(); ++i) {
    const LabelledRecord& record = outcome.labelled[i];
    const Conversation& conversation = outcome.records[i];
    fastsft::fuzz::check_told(record, conversation, options);
    fastsft::fuzz::check_row(record, options, labeller.tokenizer());
    if (!is_spans || !record.has_row()) continue;
    const fastsft::Explanation seen = fastsft::explain(labeller, conversation);
    check(fastsft::fuzz::is_same(seen.record, record));
    fastsft::fuzz::check_transcript(seen, labeller.tokenizer());
    if (options.chat_template != fastsft::kModelTemplate &&
        options.on_bad_sample != fastsft::OnBadSample::kRepair) {
      fastsft::fuzz::check_learned_texts(seen, conversation);
    }
  }
}

// A labeller, with the tokenizer and the renderer that it uses.
struct Setup {
  Setup(fastsft::fuzz::PairTokenizer& tokenizer, LabelOptions options,
        const fastsft::fuzz::FieldRenderer::Ways& ways)
      : labeller(tokenizer, options,
                 options.chat_template == fastsft::kModelTemplate
                     ? std::make_shared<fastsft::fuzz::FieldRenderer>(options, ways)
                     : nullptr) {}
  Labeller labeller;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fastsft::fuzz::Draw draw(fastsft::crc32c(std::as_bytes(std::span(data, size))));
  fastsft::fuzz::PairTokenizer tokenizer(draw.coin(), draw.coin());
  LabelOptions options = fastsft::fuzz::draw_options(draw);
  const fastsft::fuzz::FieldRenderer::Ways ways{draw.coin(), draw.below(4) != 0, draw.coin()};
  options.num_threads = 1;
  const Setup setup(tokenizer, options, ways);
  const Outcome whole = label(text, size + 64, setup.labeller);
  check_records(whole, setup.labeller);
  check_same(whole, label(text, 61, setup.labeller));
  if (draw.below(8) == 0) {
    LabelOptions threaded = options;
    threaded.num_threads = 3;
    const Setup other(tokenizer, threaded, ways);
    check_same(whole, label(text, size + 64, other.labeller));
    check_run(text, whole, other.labeller);
  }
  if (options.mask_policy == fastsft::MaskPolicy::kFastchat) return 0;
  const bool is_one_row = options.train_turns == fastsft::TrainTurns::kAll && !ways.divides;
  // Texts are encoded apart only where a learned reply begins.
  const bool has_same_ids = options.boundary_tokens == fastsft::BoundaryTokens::kMerge;
  const LabelOptions narrower = fastsft::fuzz::draw_narrower(draw, options);
  const Setup other(tokenizer, narrower, ways);
  const Outcome less = label(text, size + 64, other.labeller);
  check_records(less, other.labeller);
  if (!is_one_row || !has_same_ids) return 0;
  check(less.labelled.size() == whole.labelled.size());
  for (size_t i = 0; i < less.labelled.size(); ++i) {
    fastsft::fuzz::check_narrower(less.labelled[i], whole.labelled[i]);
  }
  return 0;
}
