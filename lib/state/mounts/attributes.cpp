#include "lib/state/mounts/attributes.h"

#include <algorithm>

namespace ckpt::state {

namespace {

struct Attribute {
  std::string_view word;
  uint64_t flag;
};
constexpr Attribute kAttributes[] = {{"ro", MOUNT_ATTR_RDONLY},
                                     {"nosuid", MOUNT_ATTR_NOSUID},
                                     {"nodev", MOUNT_ATTR_NODEV},
                                     {"noexec", MOUNT_ATTR_NOEXEC},
                                     {"noatime", MOUNT_ATTR_NOATIME},
                                     {"nodiratime", MOUNT_ATTR_NODIRATIME},
                                     {"nosymfollow", MOUNT_ATTR_NOSYMFOLLOW}};

}  // namespace

void for_each_option(std::string_view text, const std::function<void(const std::string& word)>& visit) {
  while (!text.empty()) {
    const size_t at = std::min(text.find(','), text.size());
    if (at != 0) visit(std::string(text.substr(0, at)));
    text.remove_prefix(std::min(at + 1, text.size()));
  }
}

bool is_no_option(const std::string& word, bool in_memory) {
  return word == "rw" || word == "seclabel" || (word == "ro" && in_memory);
}

mount_attr attributes_of(const store::Mount& mount) {
  mount_attr out{};
  out.attr_clr = MOUNT_ATTR__ATIME;
  bool relative = false;
  for (const Attribute& one : kAttributes) out.attr_clr |= one.flag;
  for_each_option(mount.options, [&](const std::string& word) {
    relative = relative || word == "relatime";
    for (const Attribute& one : kAttributes) out.attr_set |= word == one.word ? one.flag : 0;
  });
  if (!relative && (out.attr_set & MOUNT_ATTR_NOATIME) == 0) out.attr_set |= MOUNT_ATTR_STRICTATIME;
  return out;
}

}  // namespace ckpt::state
