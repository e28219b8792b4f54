#include "tokenizer/files/tokenizer_json_events.h"

#include "core/error.h"

namespace fastsft {
namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxValues = 1 << 23;
constexpr size_t kMaxMembers = 1 << 12;
constexpr size_t kMaxVocabulary = 1 << 22;
constexpr size_t kMaxMerges = 1 << 23;
constexpr size_t kMaxPieceBytes = 1 << 16;

// Replaces bytes that are not printable ASCII by '?', because the parser's messages quote its
// input, which may be invalid UTF-8.
std::string printable(std::string message) {
  for (char& byte : message) {
    if (static_cast<unsigned char>(byte) >= 0x7f) byte = '?';
  }
  return message.substr(0, 300);
}

}  // namespace

void TokenizerJsonEvents::refuse_value(const char* got) const {
  if (section_ == Section::kVocabulary) {
    throw_invalid(where_, ": model.vocab: expected piece ", pieces.size(),
                  " as a text with an id or a score, got ", got);
  }
  throw_invalid(where_, ": model.merges: expected merge ", num_merges(),
                " as \"left right\" or [left, right], got ", got);
}

bool TokenizerJsonEvents::add_value(Json value) {
  if (section_ != Section::kRest) refuse_value(value.type_name());
  require(++num_values_ <= kMaxValues, where_, ": more than ", kMaxValues,
          " values outside of vocabulary and merges");
  if (open_.empty()) {
    rest = std::move(value);
  } else if (open_.back()->is_array()) {
    open_.back()->push_back(std::move(value));
  } else {
    (*open_.back())[key_] = std::move(value);
  }
  return true;
}

bool TokenizerJsonEvents::open(Json value, const char* what) {
  require(++depth_ <= kMaxDepth, where_, ": JSON is nested deeper than ", kMaxDepth);
  const bool in_model = open_.size() == 2 && root_key_ == "model";
  if (in_model && section_ == Section::kRest && (key_ == "vocab" || key_ == "merges")) {
    const bool is_vocabulary = key_ == "vocab";
    require(is_vocabulary || value.is_array(), where_, ": model.merges: expected a list");
    bool& has = is_vocabulary ? has_vocabulary : has_merges;
    require(!has, where_, ": duplicate key \"", key_, "\"");
    has = true;
    section_ = is_vocabulary ? Section::kVocabulary : Section::kMerges;
    section_depth_ = depth_;
    return true;
  }
  if (section_ != Section::kRest) {
    if (!value.is_array() || depth_ != section_depth_ + 1 || awaits_number_) refuse_value(what);
    parts_in_merge_ = 0;
    return true;
  }
  add_value(std::move(value));
  Json& parent = open_.empty() ? rest : *open_.back();
  if (open_.empty()) {
    open_.push_back(&rest);
  } else {
    open_.push_back(parent.is_array() ? &parent.back() : &parent[key_]);
  }
  return true;
}

bool TokenizerJsonEvents::close() {
  if (section_ == Section::kRest) {
    open_.pop_back();
  } else if (depth_ == section_depth_) {
    section_ = Section::kRest;
  } else if (section_ == Section::kMerges ? parts_in_merge_ != 2 : awaits_number_) {
    refuse_value("a list of another length");
  }
  --depth_;
  return true;
}

bool TokenizerJsonEvents::start_object(size_t) { return open(Json::object(), "an object"); }
bool TokenizerJsonEvents::end_object() { return close(); }
bool TokenizerJsonEvents::start_array(size_t) { return open(Json::array(), "a list"); }
bool TokenizerJsonEvents::end_array() { return close(); }

bool TokenizerJsonEvents::key(std::string& value) {
  if (section_ == Section::kVocabulary) {
    add_piece(std::move(value));
    return true;
  }
  const Json& object = *open_.back();
  require(!object.contains(value), where_, ": duplicate key \"", printable(value), "\"");
  require(object.size() < kMaxMembers, where_, ": an object has more than ", kMaxMembers, " keys");
  key_ = std::move(value);
  if (depth_ == 1) root_key_ = key_;
  return true;
}

void TokenizerJsonEvents::add_piece(std::string text) {
  if (awaits_number_) refuse_value("a text");
  require(pieces.size() < kMaxVocabulary, where_, ": model.vocab has more than ", kMaxVocabulary,
          " pieces");
  require(text.size() <= kMaxPieceBytes, where_, ": model.vocab: piece ", pieces.size(), " has ",
          text.size(), " bytes, at most ", kMaxPieceBytes, " are possible");
  pieces.push_back({std::move(text), static_cast<int32_t>(pieces.size()), 0.0});
  awaits_number_ = true;
}

void TokenizerJsonEvents::set_number(int64_t id, double score) {
  if (!awaits_number_) refuse_value("a number");
  awaits_number_ = false;
  VocabularyPiece& piece = pieces.back();
  piece.score = score;
  if (depth_ != section_depth_) return;
  require(id >= 0 && id < INT32_MAX, where_, ": model.vocab: piece \"", printable(piece.text),
          "\" has the id ", id, ", which is not possible");
  piece.id = static_cast<int32_t>(id);
}

bool TokenizerJsonEvents::number_integer(int64_t value) {
  if (section_ != Section::kVocabulary) return add_value(Json(value));
  set_number(value, static_cast<double>(value));
  return true;
}

bool TokenizerJsonEvents::number_unsigned(uint64_t value) {
  if (section_ != Section::kVocabulary) return add_value(Json(value));
  set_number(value > INT64_MAX ? -1 : static_cast<int64_t>(value), static_cast<double>(value));
  return true;
}

bool TokenizerJsonEvents::number_float(double value, const std::string&) {
  if (section_ != Section::kVocabulary) return add_value(Json(value));
  if (depth_ == section_depth_) refuse_value("a number with a fraction");
  set_number(0, value);
  return true;
}

void TokenizerJsonEvents::add_merge_part(std::string_view text) {
  require(num_merges() < kMaxMerges, where_, ": model.merges has more than ", kMaxMerges,
          " merges");
  merge_texts_ += text;
  merge_ends_.push_back(static_cast<uint32_t>(merge_texts_.size()));
}

bool TokenizerJsonEvents::string(std::string& value) {
  if (section_ == Section::kRest) return add_value(Json(std::move(value)));
  const bool is_member = depth_ == section_depth_ + 1;
  if (section_ == Section::kVocabulary) {
    if (!is_member) refuse_value("a text");
    add_piece(std::move(value));
  } else if (!is_member) {
    const size_t space = value.find(' ');
    if (space == std::string::npos || value.find(' ', space + 1) != std::string::npos) {
      refuse_value("a text without exactly one space");
    }
    add_merge_part(std::string_view(value).substr(0, space));
    add_merge_part(std::string_view(value).substr(space + 1));
  } else {
    if (++parts_in_merge_ > 2) refuse_value("a list of another length");
    add_merge_part(value);
  }
  return true;
}

std::pair<std::string_view, std::string_view> TokenizerJsonEvents::merge_at(size_t i) const {
  const std::string_view texts = merge_texts_;
  const uint32_t begin = i == 0 ? 0 : merge_ends_[2 * i - 1];
  const uint32_t middle = merge_ends_[2 * i];
  return {texts.substr(begin, middle - begin),
          texts.substr(middle, merge_ends_[2 * i + 1] - middle)};
}

bool TokenizerJsonEvents::parse_error(size_t position, const std::string&,
                                      const nlohmann::detail::exception& error) {
  throw_invalid(where_, ": not JSON at byte ", position, ": ", printable(error.what()),
                "; copy or download it again");
}

}  // namespace fastsft
