#include "lib/state/files/extended_attributes.h"

#include <fmt/format.h>
#include <sys/xattr.h>

#include <cerrno>
#include <string_view>

namespace ckpt::state {

namespace {

/// No image says what security modules or the kernel think of a file.
bool may_be_carried(std::string_view name) {
  return name.starts_with("user.") || name.starts_with("system.posix_acl_");
}
/// XFS lists access control lists a second time, under names of its own.
bool is_list_again(std::string_view name) {
  return name == "trusted.SGI_ACL_FILE" || name == "trusted.SGI_ACL_DEFAULT";
}
bool is_lost(std::string_view name) {
  return (name.starts_with("trusted.") && !is_list_again(name)) || name == "security.capability";
}

Result<std::string> names_of(const std::string& path) {
  constexpr size_t kMost = 64 << 10;  // XATTR_LIST_MAX
  std::string names(kMost, '\0');
  const ssize_t size = ::listxattr(path.c_str(), names.data(), names.size());
  if (size < 0 && errno != ENOTSUP) return sys_error(path, "cannot list its extended attributes");
  names.resize(size < 0 ? 0 : static_cast<size_t>(size));
  return names;
}

}  // namespace

Result<std::vector<store::ExtendedAttribute>> read_extended_attributes(const std::string& path) {
  CKPT_TRY_ASSIGN(const std::string names, names_of(path));
  std::vector<store::ExtendedAttribute> out;
  for (size_t at = 0; at < names.size();) {
    const std::string name = names.c_str() + at;
    at += name.size() + 1;
    if (is_lost(name))
      return fail(Code::kUnsupported, "", fmt::format("has the extended attribute {}, which is not supported", name));
    if (!may_be_carried(name)) continue;
    std::vector<uint8_t> value(store::kMostAttributeBytes);
    const ssize_t size = ::getxattr(path.c_str(), name.c_str(), value.data(), value.size());
    if (size < 0 && errno == ENODATA) continue;  // taken away meanwhile
    if (size < 0) return sys_error(path, fmt::format("cannot read its extended attribute {}", name));
    value.resize(static_cast<size_t>(size));
    out.push_back({name, std::move(value)});
  }
  return out;
}

Result<void> set_extended_attributes(int fd, const std::vector<store::ExtendedAttribute>& attributes,
                                     const std::string& subject) {
  for (const store::ExtendedAttribute& one : attributes) {
    if (!may_be_carried(one.name))
      return fail(Code::kCorrupt, subject, fmt::format("has an extended attribute {} in the image", one.name));
    if (::fsetxattr(fd, one.name.c_str(), one.value.data(), one.value.size(), 0) != 0)
      return sys_error(subject, fmt::format("cannot be given its extended attribute {}", one.name));
  }
  return {};
}

}  // namespace ckpt::state
