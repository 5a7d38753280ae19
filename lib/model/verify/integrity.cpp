#include "lib/model/verify/integrity.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/torch_dist/metadata.h"
#include "lib/base/file_stream.h"
#include "lib/base/io.h"
#include "lib/base/json_reader.h"

namespace ckpt::model {

namespace {
constexpr uint64_t kMaxIntegrity = 64 << 20;
constexpr const char* kIntegrity = "integrity.json";
}  // namespace

Result<void> FileHashes::collect(const tensor::Catalog& catalog, const Manifest* manifest, const Note& note) {
  files_.root = catalog.root;
  if (catalog.format == "zarr" || catalog.format == "torch_dist") CKPT_TRY(read_integrity(note));
  if (manifest != nullptr) take_manifest(catalog, *manifest, note);
  // The large ones first: they are what a core is busy with at the end.
  std::stable_sort(units_.begin(), units_.end(), [](const Unit& a, const Unit& b) { return a.length > b.length; });
  return {};
}

/// The size of a listed file, which becomes the last of files_.
std::optional<uint64_t> FileHashes::add_file(const std::string& name, const std::string& source, const Note& note) {
  files_.files.push_back({name, 0});
  auto fd = files_.open_file(static_cast<uint32_t>(files_.files.size() - 1));
  auto st = fd ? io::stat_fd(fd->get(), name) : Result<struct stat>(fd.error());
  if (st) return static_cast<uint64_t>(st->st_size);
  const bool missing = st.error().code == Code::kNotFound;
  note({"", name, std::nullopt,
        "is listed in " + source + " and " + (missing ? "is missing" : "cannot be opened: " + st.error().message),
        false});
  return std::nullopt;
}

/// integrity.json of Megatron 0.19: file name -> SHA-256 (formats.md 1.8).
Result<void> FileHashes::read_integrity(const Note& note) {
  auto text = io::read_file(files_.root / kIntegrity, kMaxIntegrity);
  if (!text && text.error().code == Code::kNotFound) return {};
  if (!text && answers_no(text.error().code))
    return note({"", kIntegrity, std::nullopt, text.error().message, false}), Result<void>();
  if (!text) return std::move(text).error();
  auto doc =
      !json_nests_at_most(*text, kMaxJsonDepth) ? nlohmann::json() : nlohmann::json::parse(*text, nullptr, false);
  if (!doc.is_object() || !doc.contains("files") || !doc["files"].is_object()) {
    note({"", kIntegrity, std::nullopt, "is not what Megatron writes", false});
    return {};
  }
  if (!doc.contains("algorithm") || doc["algorithm"] != "sha256") {
    note({"", kIntegrity, std::nullopt, "names another algorithm than sha256", false});
    return {};
  }
  for (const auto& item : doc["files"].items()) {
    if (!item.value().is_string() || !formats::is_safe_relative_path(item.key())) {
      note({"", kIntegrity, std::nullopt, "has a malformed entry", false});
      continue;
    }
    auto size = add_file(item.key(), kIntegrity, note);
    if (!size) continue;
    covered_.insert(item.key());
    units_.push_back({static_cast<uint32_t>(files_.files.size() - 1), 0, *size, HashKind::kSha256,
                      item.value().get<std::string>(), kIntegrity, true});
  }
  return {};
}

void FileHashes::take_manifest(const tensor::Catalog& catalog, const Manifest& manifest, const Note& note) {
  manifest_name_ = manifest.name;
  for (const auto& [name, file] : manifest.files) {
    auto size = add_file(name, manifest.name, note);
    if (!size) continue;
    if (*size != file.size) {
      note({"", name, std::min(*size, file.size),
            "has " + std::to_string(*size) + " bytes, in " + manifest.name + " " + std::to_string(file.size), false});
      continue;
    }
    covered_.insert(name);
    const auto index = static_cast<uint32_t>(files_.files.size() - 1);
    for (size_t i = 0; i < file.hashes.size(); ++i) {
      units_.push_back({index, i * manifest.block, manifest.block_length(file, i), manifest.hash, file.hashes[i],
                        nullptr, file.hashes.size() == 1});
    }
  }
  for (const tensor::SourceFile& file : catalog.files) {
    if (manifest.files.count(file.path) == 0) note({"", file.path, std::nullopt, "is not in " + manifest.name, true});
  }
}

Result<void> FileHashes::check(size_t index, const Note& note, const std::function<Result<void>(uint64_t)>& advance) {
  const Unit& unit = units_[index];
  const std::string& name = files_.files[unit.file].path;
  CKPT_TRY_ASSIGN(UniqueFd fd, files_.open_file(unit.file));
  Hasher hasher(unit.kind);
  FileStream stream;
  auto read = stream.read(fd.get(), unit.offset, unit.length, name, [&](ByteSpan part) {
    hasher.update(part);
    return advance(part.size());
  });
  if (!read && !answers_no(read.error().code)) return read;
  if (!read) return note({"", name, unit.offset, read.error().message, false}), Result<void>();
  ++checked_;
  if (hasher.finish() == unit.wanted) return {};
  const std::string source = unit.source != nullptr ? unit.source : manifest_name_;
  const std::string what =
      unit.whole ? "its hash" : "the hash of the " + std::to_string(unit.length) + " bytes from here";
  note(
      {"", name, unit.whole ? std::nullopt : std::optional(unit.offset), what + " is not the one in " + source, false});
  return {};
}

}  // namespace ckpt::model
