#pragma once

#include <cstdint>
#include <string_view>

namespace fastsft {

// Reads a protobuf message's fields without a schema. Every read is checked against the message's
// end. Damaged input throws std::invalid_argument "<where>: ... at byte <k>".
class ProtobufReader {
 public:
  // `where`: a prefix for every error message. `where` must outlive the reader.
  ProtobufReader(std::string_view message, std::string_view where);

  // Advances to the next field. Returns false at the end. The previous field's value must be read
  // or skipped first.
  bool next();
  uint32_t field() const { return field_; }

  uint64_t read_varint();
  bool read_bool() { return read_varint() != 0; }
  float read_float();
  std::string_view read_bytes();
  void skip();

 private:
  enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  uint64_t parse_varint();
  std::string_view take(uint64_t size);
  void expect(WireType type);
  [[noreturn]] void fail(const char* what) const;

  std::string_view message_;
  std::string_view where_;
  size_t at_ = 0;
  uint32_t field_ = 0;
  uint32_t wire_type_ = 0;
};

}  // namespace fastsft
