#include "formats/folders.h"

#include <fcntl.h>

#include <algorithm>

#include "lib/base/io.h"

namespace ckpt::formats {

namespace fs = std::filesystem;

namespace {
constexpr size_t kMaxEntries = 4'000'000;
}  // namespace

Result<std::vector<fs::directory_entry>> list_folder(const fs::path& dir) {
  std::vector<fs::directory_entry> out;
  std::error_code ec;
  fs::directory_iterator it(dir, ec), end;
  for (; !ec && it != end; it.increment(ec)) {
    if (out.size() >= kMaxEntries) return fail(Code::kCorrupt, dir.string(), "holds too many entries");
    out.push_back(*it);
  }
  if (ec) return sys_error(ec.value(), dir.string(), "cannot list");
  std::sort(out.begin(), out.end());
  return out;
}

Result<std::string> read_document(const fs::path& path, uint64_t limit) {
  std::error_code ec;
  const fs::file_status status = fs::status(path, ec);
  if (fs::exists(status) && !fs::is_regular_file(status))
    return fail(Code::kCorrupt, path.string(), "is not a regular file");
  return io::read_file(path, limit);
}

bool has_entry(const fs::path& path) {
  std::error_code ec;
  return fs::exists(fs::symlink_status(path, ec));
}

}  // namespace ckpt::formats
