#include "lib/flash/latest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "lib/base/io.h"
#include "lib/base/replace_file.h"
#include "lib/flash/persist.h"

namespace ckpt::flash {

namespace fs = std::filesystem;

namespace {

constexpr const char* kRemoving = ".ckpt-removing-";

/// Computed from what is on disk; a folder of somebody else's is not counted and never touched.
void remove_older(const fs::path& directory, uint64_t newest, unsigned keep, std::vector<std::string>& notes) {
  if (keep == 0) return;
  std::vector<std::pair<uint64_t, fs::path>> found;
  std::error_code ec;
  for (fs::directory_iterator it(directory, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (name.rfind(kRemoving, 0) == 0) fs::remove_all(it->path(), ignored);  // of one that was killed
    unsigned long long step = 0;
    int used = 0;
    if (std::sscanf(name.c_str(), "iter_%llu%n", &step, &used) != 1 || static_cast<size_t>(used) != name.size())
      continue;
    if (step != newest && fs::is_regular_file(it->path() / kRanksFile, ignored)) found.emplace_back(step, it->path());
  }
  // Later ones are of before the job went back: they go first.
  std::sort(found.begin(), found.end(), [newest](const auto& a, const auto& b) {
    return std::pair(a.first > newest, b.first) < std::pair(b.first > newest, a.first);
  });
  for (size_t i = keep - 1; i < found.size(); ++i) {
    const fs::path away = directory / (kRemoving + found[i].second.filename().string());
    fs::rename(found[i].second, away, ec);
    if (!ec) fs::remove_all(away, ec);
    if (ec) notes.push_back("cannot remove " + found[i].second.string() + ": " + ec.message());
  }
}

}  // namespace

std::string folder_name(uint64_t step) { return fmt::format("iter_{:07}", step); }

Result<void> advance(const fs::path& directory, uint64_t step, unsigned keep, std::vector<std::string>& notes) {
  CKPT_TRY(io::replace_file(directory / kLatestFile, folder_name(step) + "\n", {0666, true}));
  CKPT_TRY(io::replace_file(directory / kMegatronLatestFile, std::to_string(step), {0666, true}));
  remove_older(directory, step, keep, notes);
  return {};
}

Result<fs::path> newest_checkpoint(const fs::path& directory) {
  std::error_code ec;
  if (auto latest = io::read_file(directory / kLatestFile, 256)) {
    const fs::path named = latest->substr(0, latest->find('\n'));
    if (named.has_filename() && !named.has_parent_path() && fs::is_regular_file(directory / named / kRanksFile, ec))
      return directory / named;
  }
  std::optional<std::pair<unsigned long long, fs::path>> best;
  for (fs::directory_iterator it(directory, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    unsigned long long step = 0;
    std::error_code ignored;
    if (std::sscanf(name.c_str(), "iter_%llu", &step) != 1 || name != folder_name(step)) continue;
    if ((!best || step > best->first) && fs::is_regular_file(it->path() / kRanksFile, ignored))
      best.emplace(step, it->path());
  }
  if (!best) return fail(Code::kNotFound, directory.string(), "holds no checkpoint of an agent");
  return best->second;
}

}  // namespace ckpt::flash
