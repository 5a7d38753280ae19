#include "lib/proc/kernel_types.h"

#include <fmt/format.h>
#include <linux/btf.h>

#include <optional>

#include "lib/base/io.h"

namespace ckpt::proc {

namespace {

constexpr const char* kDescription = "/sys/kernel/btf/vmlinux";

bool is_structure(uint32_t info) {
  return BTF_INFO_KIND(info) == BTF_KIND_STRUCT || BTF_INFO_KIND(info) == BTF_KIND_UNION;
}

/// Bytes of what follows a type's first three words; nothing: a kind that is not known.
std::optional<size_t> size_of_rest(uint32_t info) {
  constexpr unsigned kDeclTag = 17, kTypeTag = 18, kEnum64 = 19;  // newer than Debian 12's header
  const size_t count = BTF_INFO_VLEN(info);
  switch (BTF_INFO_KIND(info)) {
    case BTF_KIND_INT: case BTF_KIND_VAR: case kDeclTag: return 4;
    case BTF_KIND_ARRAY: return sizeof(btf_array);
    case BTF_KIND_STRUCT: case BTF_KIND_UNION: return count * sizeof(btf_member);
    case BTF_KIND_ENUM: case BTF_KIND_FUNC_PROTO: return count * 8;
    case BTF_KIND_DATASEC: case kEnum64: return count * 12;
    case BTF_KIND_PTR: case BTF_KIND_FWD: case BTF_KIND_TYPEDEF: case BTF_KIND_VOLATILE: case BTF_KIND_CONST:
    case BTF_KIND_RESTRICT: case BTF_KIND_FUNC: case BTF_KIND_FLOAT: case kTypeTag: return 0;
    default: return std::nullopt;
  }
}

Unexpected unknown_form() {
  return fail(Code::kUnsupported, kDescription, "describes the kernel in a form that is not known");
}

}  // namespace

Result<KernelTypes> KernelTypes::load() {
  constexpr uint64_t kLimit = 64 << 20;
  auto text = io::read_file(kDescription, kLimit);
  if (!text && text.error().code == Code::kNotFound)
    return fail(Code::kUnsupported, kDescription, "this kernel does not describe itself (CONFIG_DEBUG_INFO_BTF)");
  if (!text) return std::move(text).error();
  const ByteSpan bytes = as_bytes(*text);
  return parse({bytes.begin(), bytes.end()});
}

Result<KernelTypes> KernelTypes::parse(std::vector<std::byte> text) {
  KernelTypes out;
  out.text_ = std::move(text);
  const ByteSpan whole(out.text_);
  const auto header = ByteReader(whole).read<btf_header>();
  if (!header || header->magic != BTF_MAGIC || header->hdr_len > whole.size()) return unknown_form();
  const size_t room = whole.size() - header->hdr_len;
  if (header->type_off > room || header->type_len > room - header->type_off || header->str_off > room ||
      header->str_len > room - header->str_off)
    return unknown_form();
  out.strings_ = whole.subspan(header->hdr_len + header->str_off, header->str_len);
  out.types_at_ = header->hdr_len + header->type_off;
  out.types_end_ = out.types_at_ + header->type_len;
  CKPT_TRY(out.index());
  return out;
}

Result<void> KernelTypes::index() {
  types_.emplace_back();
  ByteReader reader(ByteSpan(text_).first(types_end_));
  reader.seek(types_at_);
  while (reader.remaining() != 0) {
    const auto type = reader.read<btf_type>();
    if (!type) return unknown_form();
    const std::optional<size_t> rest = size_of_rest(type->info);
    const size_t at = reader.position();
    if (!rest || !reader.take(*rest)) return unknown_form();
    types_.push_back({type->name_off, type->info, type->size, at});
  }
  return {};
}

std::string_view KernelTypes::name_at(uint32_t offset) const {
  if (offset >= strings_.size()) return {};
  const std::string_view rest = as_text(strings_.subspan(offset));
  return rest.substr(0, rest.find('\0'));
}

const KernelTypes::Type* KernelTypes::find(std::string_view structure) const {
  for (const Type& type : types_) {
    if (is_structure(type.info) && name_at(type.name) == structure) return &type;
  }
  return nullptr;
}

bool KernelTypes::find_member(const Type& type, std::string_view member, unsigned depth, uint64_t& bits) const {
  constexpr unsigned kDeepest = 16;
  if (depth > kDeepest) return false;
  ByteReader reader{ByteSpan(text_)};
  reader.seek(type.rest);
  const uint64_t base = bits;
  for (unsigned i = 0; i < BTF_INFO_VLEN(type.info); ++i) {
    const auto entry = reader.read<btf_member>();
    if (!entry) return false;
    bits = base + (BTF_INFO_KFLAG(type.info) != 0 ? BTF_MEMBER_BIT_OFFSET(entry->offset) : entry->offset);
    const std::string_view name = name_at(entry->name_off);
    if (name == member) return true;
    if (!name.empty() || entry->type >= types_.size() || !is_structure(types_[entry->type].info)) continue;
    if (find_member(types_[entry->type], member, depth + 1, bits)) return true;
  }
  return false;
}

Result<uint64_t> KernelTypes::offset_of(std::string_view structure, std::string_view member) const {
  const Type* type = find(structure);
  uint64_t bits = 0;
  constexpr unsigned kBits = 8;
  if (type != nullptr && find_member(*type, member, 0, bits) && bits % kBits == 0) return bits / kBits;
  return fail(Code::kUnsupported, kDescription, fmt::format("this kernel has no {}.{}", structure, member));
}

Result<uint64_t> KernelTypes::size_of(std::string_view structure) const {
  const Type* type = find(structure);
  if (type != nullptr) return uint64_t{type->size};
  return fail(Code::kUnsupported, kDescription, fmt::format("this kernel has no {}", structure));
}

}  // namespace ckpt::proc
