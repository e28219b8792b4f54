#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fastsft {

// GPT-2's way to write any byte as a printable character: the byte itself for '!' to '~' and most
// of Latin-1, U+0100 and up for the 68 others (a space is "Ġ").
uint32_t byte_to_char(uint8_t byte);

// The bytes that a piece of the vocabulary means; nothing when it has other characters.
std::optional<std::string> piece_to_bytes(std::string_view piece);
// The same after what `bytes` holds; false, with some of them there, when it has other characters.
bool append_piece_bytes(std::string_view piece, std::string& bytes);

}  // namespace fastsft
