// Pages that go to the other end once the processes run there: at the source.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/migrate/link.h"

namespace ckpt::migrate {

/// Such a file is sent, and asked for, by units: each begins at a multiple of this, and only the last may be shorter.
inline constexpr uint64_t kUnitSize = 64 << 10;
/// Behind the bytes of each in its frame: their XXH3-128 in hex digits.
inline constexpr uint64_t kUnitDigest = 32;

/// As an image names them (lib/store/pagemap.h).
bool is_pages_file(const std::string& name);

class LaterPages {
 public:
  /// Announces a file of the image, which is not to change any more.
  Result<void> announce(const std::filesystem::path& path, Link& link);
  /// What a frame kWant asks for; what has been sent is on its way. kCorrupt.
  Result<void> send_wanted(const Frame& frame, Link& link);
  /// What comes next. Nothing is left to be sent: false.
  Result<bool> send_next(Link& link);

 private:
  struct File {
    std::string name;
    UniqueFd fd;
    uint64_t size = 0;
    std::vector<bool> sent;  ///< by unit
  };
  struct Unit {
    size_t file = 0, number = 0;
  };
  Result<void> send(const Unit& unit, Link& link);

  std::vector<File> files_;
  Unit next_;
};

}  // namespace ckpt::migrate
