#include "storage/safetensors_json.h"

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace fastsft {
namespace {

using BaseJson = nlohmann::json;

constexpr size_t kMinEntry = 48;  // bytes of the shortest entry
constexpr int kMaxDepth = 127;    // of values under keys that we do not know, as the reference

// Where in {"name": {"dtype": ..., "shape": [...], "data_offsets": [...]}} the parser stands.
enum class State { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kUnknown, kEnd };
enum class Field { kNone, kDtype, kShape, kOffsets, kOther };

class HeaderReader : public nlohmann::json_sax<BaseJson> {
 public:
  HeaderReader(SafetensorsHeader& header, const std::string& where)
      : header_(header), where_(where) {}

  bool null() override {
    if (state_ == State::kTop && name_ == "__metadata__") return true;
    return scalar("null");
  }
  bool boolean(bool) override { return scalar("a boolean"); }
  bool number_integer(number_integer_t) override { return scalar("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return scalar("a number that is no 64-bit unsigned integer");
  }
  bool binary(binary_t&) override { return scalar("binary data"); }
  bool number_unsigned(number_unsigned_t value) override;
  bool string(string_t& value) override;
  bool start_object(size_t) override;
  bool key(string_t& value) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override;
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    // Without the parser's own words: they quote the bytes, which may not be UTF-8.
    throw_invalid(where_, ": the header is not JSON at byte ", position);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw_invalid(where_, ": header: ", name_.empty() ? "" : "\"" + name_ + "\": ", what);
  }
  // A value that only an unknown key may have.
  bool scalar(const char* what) {
    if (state_ == State::kUnknown || (state_ == State::kTensor && field_ == Field::kOther)) {
      return true;
    }
    refuse(concat("expected an object with dtype, shape and data_offsets, got ", what));
  }
  void open_unknown() {
    if (++depth_ > kMaxDepth) refuse("nested too deeply");
    state_ = State::kUnknown;
  }
  void close_unknown() {
    if (--depth_ == 0) state_ = State::kTensor;
  }
  void begin_field(const std::string& name);
  void finish_tensor();

  SafetensorsHeader& header_;
  const std::string& where_;
  State state_ = State::kStart;
  Field field_ = Field::kNone;
  std::string name_;
  std::string metadata_key_;
  TensorEntry tensor_;
  std::vector<uint64_t> offsets_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false, has_metadata_ = false;
  int depth_ = 0;
};

bool HeaderReader::number_unsigned(number_unsigned_t value) {
  if (state_ == State::kShape) {
    tensor_.shape.push_back(value);
  } else if (state_ == State::kOffsets) {
    offsets_.push_back(value);
  } else {
    return scalar("a number");
  }
  return true;
}

bool HeaderReader::string(string_t& value) {
  if (state_ == State::kMetadata) {
    if (!header_.metadata.emplace(metadata_key_, std::move(value)).second) {
      refuse("duplicate key \"" + metadata_key_ + "\"");
    }
    return true;
  }
  if (state_ != State::kTensor || field_ != Field::kDtype) return scalar("a string");
  const auto dtype = find_dtype(value);
  if (!dtype) refuse("unknown dtype \"" + value + "\"");
  tensor_.dtype = *dtype;
  return true;
}

bool HeaderReader::start_object(size_t) {
  if (state_ == State::kStart) {
    state_ = State::kTop;
  } else if (state_ == State::kTop && name_ == "__metadata__") {
    state_ = State::kMetadata;
  } else if (state_ == State::kTop) {
    state_ = State::kTensor;
    tensor_ = TensorEntry{name_, DType::kF32, {}, 0, 0};
    has_dtype_ = has_shape_ = has_offsets_ = false;
  } else if (state_ == State::kUnknown || (state_ == State::kTensor && field_ == Field::kOther)) {
    open_unknown();
  } else {
    refuse("an object where none is expected");
  }
  return true;
}

bool HeaderReader::key(string_t& value) {
  if (state_ == State::kTop) {
    name_ = value;
    if (name_ == "__metadata__" && std::exchange(has_metadata_, true)) refuse("duplicate key");
  } else if (state_ == State::kMetadata) {
    metadata_key_ = value;
  } else if (state_ == State::kTensor) {
    begin_field(value);
  }
  return true;
}

void HeaderReader::begin_field(const std::string& name) {
  field_ = name == "dtype"          ? Field::kDtype
           : name == "shape"        ? Field::kShape
           : name == "data_offsets" ? Field::kOffsets
                                    : Field::kOther;
  const bool duplicate = (field_ == Field::kDtype && std::exchange(has_dtype_, true)) ||
                         (field_ == Field::kShape && std::exchange(has_shape_, true)) ||
                         (field_ == Field::kOffsets && std::exchange(has_offsets_, true));
  if (duplicate) refuse("duplicate key \"" + name + "\"");
}

bool HeaderReader::end_object() {
  switch (state_) {
    case State::kUnknown:
      close_unknown();
      break;
    case State::kTensor:
      finish_tensor();
      break;
    case State::kMetadata:
      state_ = State::kTop;
      break;
    default:
      state_ = State::kEnd;
  }
  return true;
}

void HeaderReader::finish_tensor() {
  if (!has_dtype_ || !has_shape_ || !has_offsets_) {
    refuse("expected dtype, shape and data_offsets, one is missing");
  }
  header_.tensors.push_back(std::move(tensor_));
  state_ = State::kTop;
  field_ = Field::kNone;
}

bool HeaderReader::start_array(size_t) {
  if (state_ == State::kTensor && field_ == Field::kShape) {
    state_ = State::kShape;
  } else if (state_ == State::kTensor && field_ == Field::kOffsets) {
    state_ = State::kOffsets;
    offsets_.clear();
  } else if (state_ == State::kUnknown || (state_ == State::kTensor && field_ == Field::kOther)) {
    open_unknown();
  } else {
    refuse("an array where none is expected");
  }
  return true;
}

bool HeaderReader::end_array() {
  if (state_ == State::kUnknown) {
    close_unknown();
    return true;
  }
  if (state_ == State::kOffsets) {
    if (offsets_.size() != 2) refuse("expected data_offsets [begin, end]");
    tensor_.begin = offsets_[0];
    tensor_.end = offsets_[1];
  }
  state_ = State::kTensor;
  return true;
}

}  // namespace

SafetensorsHeader parse_safetensors_json(std::string_view text, const std::string& where) {
  // nlohmann_json skips a byte-order mark and takes a NUL for the end; the format knows neither.
  const size_t first = text.find_first_not_of(" \t\r\n");
  require(first != std::string_view::npos && text[first] == '{', where,
          ": the header is not a JSON object");
  require(text.find('\0') == std::string_view::npos, where, ": NUL byte in the header");
  SafetensorsHeader header;
  header.tensors.reserve(text.size() / kMinEntry + 1);  // address space; pages come with use
  HeaderReader reader(header, where);
  BaseJson::sax_parse(text.begin(), text.end(), &reader);
  return header;
}

}  // namespace fastsft
