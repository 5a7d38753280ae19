// The memory that ckpt shares with a process that is being built: the code that works through tables of calls
// (lib/proc/call_table.h), the tables, and what their pointers point to.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::restore {

/// [first, second) in an address space.
using Range = std::pair<uint64_t, uint64_t>;

/// Maps `size` bytes of ckpt's own memory where nothing of `avoid` (sorted) lies; `flags`, `file` as for mmap. kNoRoom:
/// no such place, or no memory. `what` names it for the error.
Result<Mapping> map_clear_of(const std::vector<Range>& avoid, uint64_t size, int protection, int flags, int file,
                             const char* what);

/// The shared piece. Its address is the same in ckpt and in the child, so a pointer into it means the same in both:
/// what is put here can be an argument of a call as it stands. Never reused within one restore; untouched pages cost
/// nothing.
class RestorerArea {
 public:
  static constexpr uint64_t kSize = 256ull << 20;
  static constexpr uint64_t kAsideSize = 1ull << 20;  ///< the end of it: where vdso and vvar wait

  /// Finds a place outside of `avoid` (the target's mappings, sorted) and of ckpt's own address space, and writes the
  /// code there. `with_file`: for a process that is no child of ckpt to map, too (seed.h).
  static Result<RestorerArea> create(const std::vector<Range>& avoid, bool with_file = false);
  /// -1: none.
  int file() const { return file_.get(); }

  uint64_t address() const { return reinterpret_cast<uint64_t>(memory_.data()); }
  uint64_t aside() const { return address() + kSize - kAsideSize; }
  /// The code of a table, which ends with a trap, its `syscall` instruction, and the code that makes the kernel enlarge
  /// a thread's register area for AMX tiles (rbx: a tile configuration).
  uint64_t table_code() const { return address(); }
  uint64_t syscall_instruction() const;
  uint64_t tile_code() const;

  /// Zeroed room, aligned to 64, or nullptr when the restorer area is full.
  std::byte* allocate(uint64_t size);
  /// A copy of `value` for the child to point to; 0 when the restorer area is full.
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
  UniqueFd file_;
  Mapping memory_;
  uint64_t used_ = 0;
  bool overflowed_ = false;
};

}  // namespace ckpt::restore
