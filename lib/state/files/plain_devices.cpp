#include "lib/state/files/plain_devices.h"

#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace ckpt::state {

namespace {

constexpr unsigned kMemory = 1;
constexpr std::array<std::pair<std::string_view, unsigned>, 5> kPlain = {
    {{"/dev/null", 3}, {"/dev/zero", 5}, {"/dev/full", 7}, {"/dev/random", 8}, {"/dev/urandom", 9}}};

}  // namespace

bool is_plain_device(mode_t mode, dev_t number) { return S_ISCHR(mode) && !name_of_plain_device(number).empty(); }

std::string name_of_plain_device(dev_t number) {
  const auto row = std::find_if(kPlain.begin(), kPlain.end(),
                                [&](const auto& known) { return number == makedev(kMemory, known.second); });
  return row == kPlain.end() ? "" : std::string(row->first);
}

bool is_own_plain_device(const std::string& path, struct stat& st) {
  return ::lstat(path.c_str(), &st) == 0 && S_ISCHR(st.st_mode) && path == name_of_plain_device(st.st_rdev);
}

}  // namespace ckpt::state
