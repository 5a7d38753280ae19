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
    if (out.size() >= kMaxEntries) return fail(Code::kAnswerNo, dir.string(), "holds too many entries");
    out.push_back(*it);
  }
  if (ec) return sys_error(ec.value(), dir.string(), "cannot list");
  std::sort(out.begin(), out.end());
  return out;
}

Result<std::string> read_document(const fs::path& path, uint64_t limit) {
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_regular(AT_FDCWD, path.string()));
  return io::read_all(fd.get(), limit, path.string());
}

bool has_entry(const fs::path& path) {
  std::error_code ec;
  return fs::exists(fs::symlink_status(path, ec));
}

}  // namespace ckpt::formats
