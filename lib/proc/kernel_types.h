// Where the members of the running kernel's structures lie, by the description that it gives of itself (BTF).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"

namespace ckpt::proc {

class KernelTypes {
 public:
  /// /sys/kernel/btf/vmlinux. kUnsupported: this kernel gives none.
  static Result<KernelTypes> load();
  /// kUnsupported: it is cut short, or of another format.
  static Result<KernelTypes> parse(std::vector<std::byte> text);

  /// Bytes from the begin of `structure`; also of a member of a structure or union without a name inside of it.
  /// kUnsupported: there is none.
  Result<uint64_t> offset_of(std::string_view structure, std::string_view member) const;
  /// Bytes. kUnsupported: there is none.
  Result<uint64_t> size_of(std::string_view structure) const;

 private:
  struct Type {
    uint32_t name = 0, info = 0, size = 0;
    size_t rest = 0;  ///< where its members begin
  };
  KernelTypes() = default;
  Result<void> index();
  std::string_view name_at(uint32_t offset) const;
  const Type* find(std::string_view structure) const;
  bool find_member(const Type& type, std::string_view member, unsigned depth, uint64_t& bits) const;

  std::vector<std::byte> text_;
  ByteSpan strings_;
  size_t types_at_ = 0, types_end_ = 0;
  std::vector<Type> types_;  ///< by number; 0 is void
};

}  // namespace ckpt::proc
