// System calls made by the process that is being built, many a round trip: ckpt and the child share a piece of memory
// at the same address, which holds the code that works through tables of calls (lib/proc/call_table.h), the tables, and
// what their pointers point to.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/proc/call_table.h"

namespace ckpt::restore {

/// [first, second) in an address space.
using Range = std::pair<uint64_t, uint64_t>;

/// The shared piece. Its address is the same in ckpt and in the child, so a pointer into it means the same in both:
/// what is put here can be an argument of a call as it stands. Never reused within one restore; untouched pages cost
/// nothing.
class RestorerArea {
 public:
  static constexpr uint64_t kSize = 256ull << 20;
  static constexpr uint64_t kAsideSize = 1ull << 20;  ///< the end of it: where vdso and vvar wait

  /// Finds a place outside of `avoid` (the target's mappings, sorted) and of ckpt's own address space, and writes the
  /// code there.
  static Result<RestorerArea> create(const std::vector<Range>& avoid);

  uint64_t address() const { return reinterpret_cast<uint64_t>(memory_.data()); }
  uint64_t aside() const { return address() + kSize - kAsideSize; }
  /// The code of a table, which ends with a trap, its `syscall` instruction, and the code that makes the kernel enlarge
  /// a thread's register area for AMX tiles (rbx: a tile configuration).
  uint64_t table_code() const { return address(); }
  uint64_t syscall_instruction() const;
  uint64_t tile_code() const;

  /// Zeroed room, aligned to 64, or nullptr when the scratch is full.
  std::byte* allocate(uint64_t size);
  /// A copy of `value` for the child to point to; 0 when the scratch is full.
  template <class T>
  requires std::is_trivially_copyable_v<T> uint64_t put(const T& value) {
    return put_bytes({reinterpret_cast<const std::byte*>(&value), sizeof(T)});
  }
  uint64_t put_bytes(ByteSpan bytes);
  uint64_t put_string(const std::string& text) {
    return put_bytes({reinterpret_cast<const std::byte*>(text.c_str()), text.size() + 1});
  }
  /// Ran out of room at any time since its creation: what `put` returned then must not be used.
  bool overflowed() const { return overflowed_; }

 private:
  Mapping memory_;
  uint64_t used_ = 0;
  bool overflowed_ = false;
};

using Call = proc::RemoteCall;

/// A list of calls in order. `Child::run` executes it and stops at the first failure that is not allowed.
class Script {
 public:
  enum Failure { kMustWork, kMayFail };

  template <class... Args>
  void add(const char* what, long number, Args... args) {
    push(what, kMustWork, number, {raw(args)...});
  }
  template <class... Args>
  void try_add(const char* what, long number, Args... args) {
    push(what, kMayFail, number, {raw(args)...});
  }

  bool empty() const { return calls_.empty(); }
  size_t size() const { return calls_.size(); }
  const std::vector<Call>& calls() const { return calls_; }
  /// Takes over what the child wrote into the table.
  void set_results(const Call* table) { std::memcpy(calls_.data(), table, calls_.size() * sizeof(Call)); }
  /// Of a call that failed: what was being done, and why not.
  Error failure(size_t index) const;
  const char* what(size_t index) const { return what_[index]; }

 private:
  template <class T>
  static uint64_t raw(T value) {
    if constexpr (std::is_signed_v<T>) {
      return static_cast<uint64_t>(static_cast<int64_t>(value));
    } else {
      return static_cast<uint64_t>(value);
    }
  }
  void push(const char* what, Failure failure, long number, std::initializer_list<uint64_t> args);

  std::vector<Call> calls_;
  std::vector<const char*> what_;
};

}  // namespace ckpt::restore
