// Fuzzes data files. A file must be rejected with std::invalid_argument, or give records whose
// positions lie inside the file. Small and large read blocks must give the same records. Every data
// format must accept or reject the file in this way, every written record must be valid JSON, and
// the vectorized and portable scanners must agree.
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chunk_parser.h"
#include "chat/record_reader.h"
#include "chat/record_splitter.h"
#include "chat/record_writer.h"
#include "core/json_text.h"

namespace {

using fastsft::Conversation;

void check(bool ok) {
  if (!ok) std::abort();
}

struct Outcome {
  std::string error;
  std::vector<Conversation> records;
};

Outcome read_all(std::string_view text, size_t block_size,
                 const std::string& format = fastsft::kAutoFormat) {
  Outcome outcome;
  fastsft::TextSource source{std::string(text)};
  fastsft::RecordReader reader(source, "data", block_size);
  std::optional<fastsft::ChunkParser> parser;
  fastsft::RecordChunk chunk;
  std::vector<Conversation> records;
  try {
    while (reader.next(chunk)) {
      if (!parser) parser.emplace("data", fastsft::choose_format(chunk, format));
      parser->parse(chunk, fastsft::Share(), records);
      check(static_cast<int64_t>(records.size()) == chunk.num_records);
      for (Conversation& record : records) {
        const auto place = fastsft::find_place(chunk, record, 0);
        check(place.byte >= chunk.first_byte && place.line >= 1);
        outcome.records.push_back(std::move(record));
      }
    }
  } catch (const std::invalid_argument& error) {
    outcome.error = error.what();
  }
  return outcome;
}

// Removes the excerpt from an error message: it ends with its read block, and may itself contain ",
// column ".
std::string without_excerpt(const std::string& error) {
  const size_t column = error.find(", column ");
  return column == error.npos ? error : error.substr(0, error.find(':', column));
}

void check_records(const Outcome& outcome, size_t size) {
  int64_t number = 0;
  for (const Conversation& record : outcome.records) {
    check(record.number == number++);
    check(record.byte >= 0 && record.byte <= static_cast<int64_t>(size));
    for (const fastsft::Message& message : record.messages) {
      check(message.byte > record.byte && message.byte < static_cast<int64_t>(size));
    }
  }
}

void check_written(const std::vector<Conversation>& records) {
  for (const auto format : {fastsft::WrittenFormat::kSharegpt, fastsft::WrittenFormat::kMessages}) {
    const fastsft::RecordWriter writer(format);
    for (const Conversation& record : records) {
      std::string text;
      if (writer.write(record, text)) {
        check(text.empty());
        continue;
      }
      fastsft::JsonScanner scanner(text);
      scanner.skip();
      scanner.expect_end();
    }
  }
}

void check_formats(std::string_view text) {
  for (const std::string& name : fastsft::DataFormats::instance().names()) {
    const Outcome outcome = read_all(text, text.size() + 64, name);
    check_records(outcome, text.size());
    check_written(outcome.records);
  }
}

void check_scanners(std::string_view text) {
  const size_t count = text.size() / fastsft::kJsonBlockSize;
  std::vector<fastsft::JsonBlock> vector(count), plain(count);
  fastsft::classify_json(text.data(), count, vector.data());
  fastsft::classify_json_portable(text.data(), count, plain.data());
  for (size_t i = 0; i < count; ++i) {
    check(vector[i].quotes == plain[i].quotes && vector[i].backslashes == plain[i].backslashes &&
          vector[i].brackets == plain[i].brackets);
  }
  bool wide = false, plain_wide = false;
  check(fastsft::find_string_special(text.data(), text.size(), &wide) ==
        fastsft::find_string_special_portable(text.data(), text.size(), &plain_wide));
  check(wide == plain_wide);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Outcome whole = read_all(text, size + 64), parts = read_all(text, 61);
  check(without_excerpt(whole.error) == without_excerpt(parts.error));
  if (whole.error.empty()) check(whole.records.size() == parts.records.size());
  check_records(whole, size);
  check_formats(text);
  check_scanners(text);
  return 0;
}
