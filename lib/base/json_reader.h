// JSON of a stranger, read piece by piece with no tree in between: the text goes straight into what it describes, in
// time and memory that its length and the limits bound.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ckpt {

/// A place in a JSON text. What is not JSON (RFC 8259, UTF-8), or past a limit, is a fault: from the first on there is
/// nothing more to read, every call gives its empty answer, and `fault` says what is wrong and at which byte.
class JsonReader {
 public:
  struct Limits {
    size_t depth = 64;         ///< of objects and arrays in each other
    size_t values = 1 << 24;
  };
  /// Borrows the text.
  JsonReader(std::string_view text, Limits limits) : text_(text), limits_(limits) {}

  /// What the next value is: '{', '[', '"', 'n' a number, 't', 'f', '0' null; 0 at a fault.
  char peek();

  /// Into the object or array that `peek` has shown.
  void enter();
  /// To the next element or member of what `bracket` opened, true; or out behind its end, false. `first`: nothing of it
  /// has been read yet.
  bool next(char bracket, bool first);
  /// The name of a member, after `next`. Valid until the next call.
  std::string_view key();
  /// Takes the member if it has this name (printable ASCII, no quotes and backslashes). False: nothing is taken.
  bool try_key(std::string_view name);

  /// The value that `peek` has shown, decoded. Valid until the next call.
  std::string_view string();
  bool boolean();
  struct Integer {
    bool negative = false;
    uint64_t magnitude = 0;
  };
  /// Nothing: the number has a fraction or an exponent, or does not fit into 64 bits.
  std::optional<Integer> number();
  /// Past a value of any kind, which is checked as if it were read.
  void skip();
  /// After the outermost value: nothing but white space may follow.
  void finish();

  /// To come back to: for members in another order than they are looked for.
  struct Position {
    size_t at = 0, depth = 0, values = 0;
  };
  Position position() const { return {at_, depth_, values_}; }
  void seek(const Position& position);

  bool failed() const { return !fault_.empty(); }
  const std::string& fault() const { return fault_; }

 private:
  void fail(std::string what);
  void fail_syntax(const char* expected);
  char skip_space();
  bool count();
  bool word(std::string_view word);
  std::string_view decode(size_t plain);
  bool escape(std::string& out);
  std::optional<unsigned> four_digits();

  std::string_view text_;
  Limits limits_;
  size_t at_ = 0, depth_ = 0, values_ = 0;
  std::string scratch_;
  std::string fault_;
};

/// Whether this is JSON whose objects and arrays nest at most so deep: what keeps a tree of it recurses when it copies,
/// compares and prints.
bool json_nests_at_most(std::string_view text, size_t depth);
/// Deep enough for every document of a checkpoint.
inline constexpr size_t kMaxJsonDepth = 64;

}  // namespace ckpt
