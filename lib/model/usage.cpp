#include "lib/model/usage.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <utility>

#include "lib/base/checked.h"

namespace ckpt::model {

namespace fs = std::filesystem;

std::optional<tensor::Shape> shard_grid(const tensor::Tensor& tensor) {
  if (tensor.shards.empty()) return std::nullopt;
  const size_t rank = tensor.shape.size();
  tensor::Shape out(rank, 1);
  for (size_t axis = 0; axis < rank; ++axis) {
    std::vector<std::pair<uint64_t, uint64_t>> places;
    for (const tensor::Shard& shard : tensor.shards) {
      if (shard.offset.size() != rank || shard.shape.size() != rank) return std::nullopt;
      places.emplace_back(shard.offset[axis], shard.shape[axis]);
    }
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    for (size_t i = 1; i < places.size(); ++i) {
      if (places[i].first == places[i - 1].first) return std::nullopt;  // pieces of two lengths begin at one place
    }
    out[axis] = places.size();
  }
  if (checked_product(out) != tensor.shards.size()) return std::nullopt;
  return out;
}

namespace {

constexpr size_t kMaxFiles = 4'000'000;

struct Range {
  uint32_t file;
  uint64_t begin, end;
};

/// Bytes of each file that some range covers.
std::vector<uint64_t> covered(std::vector<Range> ranges, size_t files) {
  std::vector<uint64_t> out(files, 0);
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return std::tie(a.file, a.begin) < std::tie(b.file, b.begin); });
  uint32_t file = UINT32_MAX;
  uint64_t reach = 0;
  for (const Range& r : ranges) {
    if (r.file != file) reach = 0;
    file = r.file;
    const uint64_t from = std::max(r.begin, reach);
    if (r.end > from) out[file] += r.end - from;
    reach = std::max(reach, r.end);
  }
  return out;
}

class UsageCounter {
 public:
  explicit UsageCounter(const tensor::Catalog& catalog)
      : catalog_(catalog), out_(catalog.files.size()), last_(catalog.files.size(), nullptr) {}

  std::vector<FileUsage> count() {
    for (size_t i = 0; i < out_.size(); ++i) {
      out_[i].path = catalog_.files[i].path;
      out_[i].size = catalog_.files[i].size;
    }
    for (const tensor::Tensor& t : catalog_.tensors) {
      for (const tensor::Shard& shard : t.shards) {
        const tensor::FileRange& range = shard.item.length != 0 ? shard.item : shard.where;
        if (!add(range)) continue;
        ++out_[range.file].shards;
        if (std::exchange(last_[range.file], &t) != &t) ++out_[range.file].tensors;
      }
    }
    for (const tensor::Object& object : catalog_.objects) {
      if (add(object.where)) ++out_[object.where.file].objects;
    }
    if (catalog_.common && add(*catalog_.common)) ++out_[catalog_.common->file].objects;
    const std::vector<uint64_t> bytes = covered(std::move(ranges_), out_.size());
    for (size_t i = 0; i < out_.size(); ++i) out_[i].referred = bytes[i];
    return std::move(out_);
  }

 private:
  bool add(const tensor::FileRange& range) {
    if (range.length == 0 || range.file >= out_.size()) return false;
    ranges_.push_back({range.file, range.offset, checked_add(range.offset, range.length).value_or(UINT64_MAX)});
    return true;
  }

  const tensor::Catalog& catalog_;
  std::vector<FileUsage> out_;
  std::vector<const tensor::Tensor*> last_;
  std::vector<Range> ranges_;
};

}  // namespace

Result<std::vector<FileUsage>> file_usage(const tensor::Catalog& catalog) {
  std::vector<FileUsage> out = UsageCounter(catalog).count();
  std::error_code ec;
  if (!fs::is_directory(catalog.root, ec)) {
    for (FileUsage& file : out) file.size = fs::file_size(catalog.root, ec);
    return out;
  }
  std::map<std::string_view, FileUsage*> by_path;
  for (FileUsage& file : out) {
    file.missing = true;
    by_path[file.path] = &file;
  }
  std::vector<FileUsage> rest;
  // What a link leads to is part of the checkpoint where its metadata names the link.
  fs::recursive_directory_iterator it(catalog.root, fs::directory_options::skip_permission_denied, ec), end;
  for (size_t seen = 0; !ec && it != end; it.increment(ec)) {
    if (!it->is_regular_file(ec)) continue;
    if (++seen > kMaxFiles)
      return fail(Code::kUnsupported, catalog.root.string(), "holds more files than can be listed");
    const std::string path = it->path().lexically_relative(catalog.root).generic_string();
    const uint64_t size = it->file_size(ec);
    auto known = by_path.find(path);
    if (known == by_path.end() && it->is_symlink(ec)) continue;
    if (known != by_path.end()) {
      known->second->size = size;
      known->second->missing = false;
    } else {
      FileUsage file;
      file.path = path;
      file.size = size;
      file.listed = false;
      rest.push_back(std::move(file));
    }
  }
  if (ec) return sys_error(ec.value(), catalog.root.string(), "cannot list the folder");
  out.insert(out.end(), rest.begin(), rest.end());
  std::sort(out.begin(), out.end(), [](const FileUsage& a, const FileUsage& b) { return a.path < b.path; });
  return out;
}

}  // namespace ckpt::model
