// The running kernel's own memory, read only, through a small BPF program: what no file of /proc and no system call
// tells.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/proc/kernel_types.h"

namespace ckpt::proc {

class KernelMemory {
 public:
  /// Made when it is first asked for, by the thread that takes inventories. kPermission (it needs CAP_BPF and
  /// CAP_PERFMON, or CAP_SYS_ADMIN), kUnsupported: this kernel has not what it takes, or is locked down.
  static Result<const KernelMemory*> get();

  /// The number (of 4 or 8 bytes, as `T` says) that a structure at `address` has there. kUnsupported: there is no such
  /// member, or no memory.
  template <class T>
  Result<T> read(uint64_t address, const char* structure, const char* member) const {
    CKPT_TRY_ASSIGN(const uint64_t offset, offset_of(structure, member));
    CKPT_TRY_ASSIGN(const uint64_t word, word_at(address + offset));
    return static_cast<T>(word);
  }
  Result<uint64_t> word_at(uint64_t address) const;
  Result<uint64_t> offset_of(const char* structure, const char* member) const;

  Result<uint64_t> size_of(const char* structure) const { return types_.size_of(structure); }

  /// The `struct file` of a descriptor of ckpt's.
  Result<uint64_t> file_of(int fd) const;
  /// The `task_struct` of the first thread of a process, which has this number here. kNotFound: it has ended.
  Result<uint64_t> task_of(int pid, int pidfd) const;
  /// What is to be added to the address of something of which each possible processor has its own, for each of them.
  const std::vector<uint64_t>& processor_offsets() const { return processors_; }

 private:
  explicit KernelMemory(KernelTypes types) : types_(std::move(types)) {}
  static Result<KernelMemory> make();
  Result<void> load_program();
  Result<void> find_processors();
  Result<uint64_t> current() const;
  Result<bool> is_number(uint64_t pid_structure, int pid) const;

  KernelTypes types_;
  UniqueFd program_;
  std::vector<uint64_t> processors_;
  mutable std::map<std::pair<std::string, std::string>, uint64_t> offsets_;
};

}  // namespace ckpt::proc
