#include "tokenizer/sentencepiece/protobuf_reader.h"

#include <bit>

#include "core/error.h"

namespace fastsft {

ProtobufReader::ProtobufReader(std::string_view message, std::string_view where)
    : message_(message), where_(where) {}

void ProtobufReader::fail(const char* what) const {
  throw_invalid(where_, ": damaged protobuf message: ", what, " at byte ", at_,
                "; copy or download it again");
}

uint64_t ProtobufReader::parse_varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (at_ == message_.size()) fail("the number is cut off");
    const auto byte = static_cast<uint8_t>(message_[at_++]);
    if (shift == 63 && byte > 1) fail("the number is longer than 64 bits");
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  fail("the number is longer than 64 bits");
}

bool ProtobufReader::next() {
  if (at_ == message_.size()) return false;
  const uint64_t key = parse_varint();
  if (key >> 3 == 0 || key >> 3 > 0x1FFFFFFF) fail("impossible field number");
  field_ = static_cast<uint32_t>(key >> 3);
  wire_type_ = static_cast<uint32_t>(key & 7);
  return true;
}

std::string_view ProtobufReader::take(uint64_t size) {
  if (size > message_.size() - at_) fail("the field is longer than the message");
  const std::string_view part = message_.substr(at_, size);
  at_ += size;
  return part;
}

void ProtobufReader::expect(WireType type) {
  if (wire_type_ != type) fail("the field has another type than expected");
}

uint64_t ProtobufReader::read_varint() {
  expect(kVarint);
  return parse_varint();
}

float ProtobufReader::read_float() {
  expect(kFixed32);
  uint32_t bits = 0;
  const std::string_view bytes = take(4);
  for (int i = 3; i >= 0; --i) bits = bits << 8 | static_cast<uint8_t>(bytes[i]);
  return std::bit_cast<float>(bits);
}

std::string_view ProtobufReader::read_bytes() {
  expect(kBytes);
  return take(parse_varint());
}

void ProtobufReader::skip() {
  switch (wire_type_) {
    case kVarint:
      parse_varint();
      break;
    case kFixed64:
      take(8);
      break;
    case kBytes:
      take(parse_varint());
      break;
    case kFixed32:
      take(4);
      break;
    default:
      fail("unknown type of field");
  }
}

}  // namespace fastsft
