// System calls made by the process that is being built, many a round trip: their table lies in the restorer area, and
// the code there works through it (lib/proc/call_table.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "lib/base/result.h"
#include "lib/proc/call_table.h"
#include "lib/state/tree/restorer_area.h"

namespace ckpt::restore {

using Call = proc::RemoteCall;

/// Calls in order. `Child::run` makes them and stops at the first failure that is not allowed.
class SyscallBatch {
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
