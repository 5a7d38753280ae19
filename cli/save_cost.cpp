#include "cli/save_cost.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/duration.h"
#include "lib/base/io.h"
#include "lib/base/text.h"
#include "lib/base/unique_fd.h"
#include "lib/store/find_images.h"
#include "lib/store/image.h"

namespace ckpt::cli {

namespace fs = std::filesystem;

namespace {

constexpr size_t kNewest = 5;
constexpr uint64_t kProbe = uint64_t{256} << 20;

uint64_t median(std::vector<uint64_t> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Of images alone that were made while the processes went on and of those that ended them: what stood still is the
/// same.
SaveCost cost_of_images(std::vector<store::Manifest> images) {
  std::sort(images.begin(), images.end(),
            [](const store::Manifest& a, const store::Manifest& b) { return a.created > b.created; });
  images.resize(std::min(images.size(), kNewest));
  std::vector<uint64_t> stalls, writes, bytes;
  for (const store::Manifest& image : images) {
    stalls.push_back(image.stats.frozen_us + image.stats.stops_us);
    uint64_t all = 0;
    for (const auto& [name, us] : image.stats.phases_us) all += us;
    writes.push_back(all);
    bytes.push_back(image.stats.bytes_written);
  }
  SaveCost out{median(stalls), median(writes), median(bytes), ""};
  out.source = images.size() == 1 ? std::string("recorded in the image")
                                  : fmt::format("median of what the newest {} images recorded", images.size());
  return out;
}

Result<uint64_t> bytes_below(const fs::path& path, const Cancel& cancel) {
  std::error_code ec;
  if (fs::is_regular_file(path, ec)) return static_cast<uint64_t>(fs::file_size(path, ec));
  uint64_t sum = 0;
  for (fs::recursive_directory_iterator it(path, ec), end; !ec && it != end; it.increment(ec)) {
    CKPT_TRY(cancel.check());
    std::error_code gone;
    if (it->is_regular_file(gone) && !it->is_symlink(gone)) {
      const uint64_t size = it->file_size(gone);
      if (!gone) sum += size;
    }
  }
  if (ec) return sys_error(ec.value(), path.string(), "cannot list its files");
  return sum;
}

/// Bytes a second. The file has no name: nothing is left whatever happens.
Result<uint64_t> measure_writing(const fs::path& folder, uint64_t bytes, const Cancel& cancel) {
  UniqueFd file(::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  if (!file) {
    return sys_error(folder.string(), "cannot measure how fast files are written there")
        .with_hint("--write-rate says it");
  }
  std::vector<std::byte> block(size_t{4} << 20);
  uint64_t random = 0x9e3779b97f4a7c15;  // what compresses would be written faster than a checkpoint
  for (std::byte& byte : block) {
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    byte = static_cast<std::byte>(random);
  }
  const uint64_t total = std::clamp<uint64_t>(bytes, block.size(), kProbe);
  Stopwatch watch;
  for (uint64_t done = 0; done < total;) {
    CKPT_TRY(cancel.check());
    const uint64_t part = std::min<uint64_t>(block.size(), total - done);
    CKPT_TRY(io::pwrite_all(file.get(), ByteSpan(block).first(part), done, folder.string()));
    done += part;
  }
  CKPT_TRY(io::sync_fd(file.get(), folder.string()));
  return static_cast<uint64_t>(static_cast<double>(total) * 1e6 /
                               static_cast<double>(std::max<uint64_t>(watch.elapsed_us(), 1)));
}

Result<SaveCost> cost_by_rate(const fs::path& path, std::optional<uint64_t> rate, Context& context) {
  SaveCost out;
  CKPT_TRY_ASSIGN(out.bytes, bytes_below(path, context.cancel));
  if (out.bytes == 0) return fail(Code::kNotFound, path.string(), "holds no bytes: nothing says what a save costs");
  const bool measured = !rate.has_value();
  if (measured) {
    std::error_code ec;
    const fs::path folder = fs::is_directory(path, ec) ? path : fs::absolute(path).parent_path();
    CKPT_TRY_ASSIGN(rate, measure_writing(folder, out.bytes, context.cancel));
  }
  if (*rate == 0) return fail(Code::kUsage, "--write-rate 0", "nothing would ever be written");
  out.stall_us = static_cast<uint64_t>(static_cast<double>(out.bytes) * 1e6 / static_cast<double>(*rate));
  out.source = fmt::format("{} at {}/s{}", human_bytes(out.bytes), human_bytes(*rate), measured ? ", measured" : "");
  return out;
}

}  // namespace

Result<SaveCost> find_save_cost(const std::string& text, std::optional<uint64_t> bytes_a_second,
                                const std::string& option, Context& context) {
  auto given = parse_duration(text, option);
  if (given) return SaveCost{*given, 0, 0, "given"};
  std::error_code ec;
  if (!fs::exists(text, ec)) {
    return Error(Code::kUsage, option, fmt::format("'{}' is neither a duration nor a folder", text))
        .with_hint(given.error().hint);
  }
  std::vector<store::Manifest> images;
  if (fs::is_directory(text, ec)) {
    CKPT_TRY_ASSIGN(const std::vector<fs::path> found, store::find_images(text, context.progress, context.cancel));
    for (const fs::path& path : found) {
      if (auto manifest = store::read_manifest(path)) images.push_back(std::move(*manifest));
    }
  }
  if (!images.empty()) return cost_of_images(std::move(images));
  return cost_by_rate(text, bytes_a_second, context);
}

Result<double> parse_part(const std::string& text, const std::string& option) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  const std::string_view rest(end, text.data() + text.size());
  if (rest == "%") value /= 100;
  if (error != std::errc() || (!rest.empty() && rest != "%") || !(value > 0) || value > 1)
    return fail(Code::kUsage, option,
                fmt::format("'{}' is neither a percentage above 0 nor a number above 0 and up to 1", text));
  return value;
}

}  // namespace ckpt::cli
