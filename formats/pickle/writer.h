// Pickles of protocol 2, from the opcodes that torch's restricted loader knows (formats.md 3.3).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ckpt::pickle {

/// Appends opcodes. The caller keeps the stack machine's order: a call's function before its arguments.
class Writer {
 public:
  Writer() { out_ = "\x80\x02"; }

  void none() { out_ += 'N'; }
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }
  void integer(uint64_t value);
  void signed_integer(int64_t value);
  void long_integer(std::string_view digits);  ///< little-endian two's complement, 255 bytes at most
  void real(double value);
  void text(std::string_view utf8);
  void binary_text(std::string_view bytes);  ///< Python 2's str: who loads it says in what encoding
  /// A name from a module; fetched from the memo when it was written before.
  void global(const std::string& module, const std::string& name);
  void mark() { out_ += '('; }
  void empty_tuple() { out_ += ')'; }
  void empty_list() { out_ += ']'; }
  void empty_dict() { out_ += '}'; }
  /// The items since the mark as a tuple; tuple1 takes the last one only.
  void tuple() { out_ += 't'; }
  void tuple1() { out_ += '\x85'; }
  void integers(const std::vector<uint64_t>& values);  ///< a tuple of them
  void appends() { out_ += 'e'; }   ///< to the list before the mark
  void set_items() { out_ += 'u'; } ///< of the dict before the mark
  void reduce() { out_ += 'R'; }    ///< calls: function, argument tuple
  void new_object() { out_ += '\x81'; }  ///< class, argument tuple
  void build() { out_ += 'b'; }     ///< object, state
  void persistent_id() { out_ += 'Q'; }
  void stop() { out_ += '.'; }

  /// Remembers the top of the stack, to `get` it later.
  uint32_t put();
  void get(uint32_t memo);

  size_t size() const { return out_.size(); }
  /// What was written since the last call.
  std::string take() { return std::exchange(out_, {}); }

 private:
  std::string out_;
  std::map<std::pair<std::string, std::string>, uint32_t> globals_;
  uint32_t memo_ = 0;
};

}  // namespace ckpt::pickle
