#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "tokenizer/files/tokenizer_json.h"

namespace fastsft {

// Receives the JSON parser's events for a tokenizer.json. The vocabulary and the merges, which are
// large, go into plain vectors; the rest becomes a small Json. Limits are checked while the parser
// runs.
class TokenizerJsonEvents : public nlohmann::json_sax<Json> {
 public:
  explicit TokenizerJsonEvents(std::string where) : where_(std::move(where)) {}

  bool null() override { return add_value(Json()); }
  bool boolean(bool value) override { return add_value(Json(value)); }
  bool number_integer(int64_t value) override;
  bool number_unsigned(uint64_t value) override;
  bool number_float(double value, const std::string& text) override;
  bool string(std::string& value) override;
  bool binary(Json::binary_t& value) override { return false; }
  bool start_object(size_t size) override;
  bool end_object() override;
  bool start_array(size_t size) override;
  bool end_array() override;
  bool key(std::string& value) override;
  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception& error) override;

  Json rest;
  std::vector<VocabularyPiece> pieces;
  bool has_vocabulary = false;
  bool has_merges = false;

  size_t num_merges() const { return merge_ends_.size() / 2; }
  // Returns the two texts in merge `i`.
  std::pair<std::string_view, std::string_view> merge_at(size_t i) const;

 private:
  enum class Section { kRest, kVocabulary, kMerges };

  [[noreturn]] void refuse_value(const char* got) const;
  bool add_value(Json value);
  bool open(Json value, const char* what);
  bool close();
  void add_piece(std::string text);
  void set_number(int64_t id, double score);
  void add_merge_part(std::string_view text);

  std::string where_;
  Section section_ = Section::kRest;
  int depth_ = 0;          // number of open containers, the root included
  int section_depth_ = 0;  // depth at which the section's container is
  bool awaits_number_ = false;
  size_t parts_in_merge_ = 0;
  std::vector<Json*> open_;
  std::string key_;
  std::string root_key_;
  size_t num_values_ = 0;
  std::string merge_texts_;
  std::vector<uint32_t> merge_ends_;
};

}  // namespace fastsft
