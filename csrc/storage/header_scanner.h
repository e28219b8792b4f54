#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fastsft {

// Walks over JSON text value by value and builds no tree: a safetensors header may have a hundred
// megabytes. Strict (RFC 8259, UTF-8, no lone surrogates); white space is passed over before every
// value and sign. What is not JSON is std::invalid_argument "<where>: the header is not JSON at
// byte N".
class HeaderScanner {
 public:
  HeaderScanner(std::string_view text, std::string where);

  // The first character of what comes next; NUL at the end.
  char peek();
  // What kind of value comes next, as a sentence has it: "a string".
  const char* kind();
  bool take_if(char sign);
  void take(char sign);
  void read_string(std::string& into);
  // Nothing for a number that is no 64-bit unsigned integer.
  std::optional<uint64_t> read_number();
  void skip_literal();
  // False when arrays and objects in it are nested deeper than `max_depth`.
  bool skip_value(size_t max_depth);
  // Nothing but white space may be left.
  void finish();

  // An object: `member(key)` reads the value of each key. The key is only valid meanwhile.
  template <typename Member>
  void read_object(Member&& member) {
    take('{');
    if (take_if('}')) return;
    std::string key;
    do {
      read_string(key);
      take(':');
      member(key);
    } while (take_if(','));
    take('}');
  }

 private:
  [[noreturn]] void fail() const;
  void skip_digits();
  void read_escape(std::string& into);
  void read_multibyte(std::string& into);
  char32_t read_hex();
  void skip_scalar();
  void skip_key();

  std::string_view text_;
  size_t at_ = 0;
  std::string where_;
  std::string passed_;  // text of strings that nobody wants
};

}  // namespace fastsft
