#include "lib/model/convert/siblings.h"

#include <fcntl.h>

#include <algorithm>
#include <set>

#include "formats/npy/header.h"
#include "lib/model/verify/manifest.h"
#include "lib/base/io.h"

namespace ckpt::model {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMaxEntries = 100'000;
constexpr uint64_t kCompared = 1 << 20;

bool ends_with(std::string_view text, std::string_view tail) {
  return text.size() >= tail.size() && text.substr(text.size() - tail.size()) == tail;
}

/// Files that the readers look at by name, and do not list.
bool is_metadata(const tensor::Catalog& catalog, const std::string& name) {
  static const std::set<std::string_view> kNames = {".metadata", "metadata.json",   "common.pt",  "integrity.json",
                                                    ".zgroup",   ".zattrs",         ".zmetadata", ".zarray",
                                                    "zarr.json", formats::kNpyTypes};
  if (kNames.count(name) != 0 || name == default_manifest_path(catalog.root).filename()) return true;
  if (catalog.format == "safetensors" && ends_with(name, ".safetensors.index.json")) return true;
  if (catalog.format.substr(0, 4) == "zarr" && ends_with(name, ".sync"))
    return true;  // the locks that Megatron's writers left
  return name.substr(0, 2) == "__" && ends_with(name, ".metadata");
}

/// An array without a chunk in it.
bool is_array(const fs::path& folder) {
  std::error_code ec;
  return fs::exists(folder / ".zarray", ec) || fs::exists(folder / ".zgroup", ec) ||
         fs::exists(folder / "zarr.json", ec);
}

Result<void> copy_file(const fs::path& path, const tensor::OutputFile::Sink& sink) {
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(path, O_RDONLY | O_NONBLOCK));
  CKPT_TRY_ASSIGN(const struct stat st, io::stat_fd(fd.get(), path.string()));
  std::vector<std::byte> block(kCompared);
  for (uint64_t at = 0, size = static_cast<uint64_t>(st.st_size); at < size;) {
    MutableByteSpan part(block.data(), std::min<uint64_t>(block.size(), size - at));
    CKPT_TRY(io::pread_exact(fd.get(), part, at, path.string()));
    CKPT_TRY(sink(as_text(part)));
    at += part.size();
  }
  return {};
}

}  // namespace

std::vector<std::string> find_siblings(const tensor::Catalog& catalog) {
  std::vector<std::string> out;
  std::set<std::string_view> known;  // files of the catalog, and the folders that they lie in
  for (const tensor::SourceFile& file : catalog.files)
    known.insert(std::string_view(file.path).substr(0, file.path.find('/')));
  std::error_code ec;
  if (!fs::is_directory(catalog.root, ec)) return out;
  size_t seen = 0;
  for (fs::directory_iterator it(catalog.root, ec), end; !ec && it != end && seen < kMaxEntries;
       it.increment(ec), ++seen) {
    const std::string name = it->path().filename().string();
    if (known.count(name) != 0 || is_metadata(catalog, name)) continue;
    std::error_code ignored;
    if (it->is_regular_file(ignored)) out.push_back(name);
    else if (it->is_directory(ignored) && !is_array(it->path())) out.push_back(name + "/");
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::string> copy_siblings(const tensor::Catalog& catalog, const std::vector<std::string>& names,
                                       tensor::Layout& layout) {
  std::vector<std::string> left;
  std::vector<tensor::OutputFile> files;
  for (const std::string& name : names) {
    const bool taken = name.back() == '/' ||
                       std::any_of(layout.files.begin(), layout.files.end(), [&](const tensor::OutputFile& file) {
                         return file.name.substr(0, file.name.find('/')) == name;
                       });
    if (taken) {
      left.push_back(name);
      continue;
    }
    const fs::path path = catalog.root / name;
    std::error_code ec;
    tensor::OutputFile& file = files.emplace_back();
    file.name = name;
    file.size = fs::file_size(path, ec);
    file.generate = [path](const tensor::OutputFile::Sink& sink) { return copy_file(path, sink); };
  }
  // Before the file that makes the whole complete, and behind the data files.
  const auto last = std::find_if(layout.files.begin(), layout.files.end(), [&](const tensor::OutputFile& file) {
    return file.generate && file.name == layout.last_file;
  });
  layout.files.insert(last, std::make_move_iterator(files.begin()), std::make_move_iterator(files.end()));
  return left;
}

}  // namespace ckpt::model
