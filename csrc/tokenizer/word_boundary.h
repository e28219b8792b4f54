#pragma once

#include <cstddef>
#include <string_view>

namespace fastsft {

// The end of the word that begins at `begin`: a run of spaces and what follows up to the next
// space. A U+2581 in the text counts as a space; `has_marks` says whether there may be one.
size_t find_word_end(std::string_view text, size_t begin, bool has_marks);

}  // namespace fastsft
