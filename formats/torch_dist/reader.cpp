#include "formats/torch_dist/reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "formats/common_state.h"
#include "formats/megatron/metadata_json.h"
#include "formats/torch_dist/items.h"
#include "formats/torch_dist/metadata.h"
#include "formats/torch_dist/reformulated.h"
#include "lib/base/io.h"

namespace ckpt::formats {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMaxRanks = 1'000'000;
constexpr const char* kCommonObject = "common_state/shard_0_1";

/// `__<rank>.metadata` of a save without collectives, by rank.
std::vector<std::string> rank_files(const fs::path& dir) {
  constexpr std::string_view kHead = "__", kTail = ".metadata";
  std::vector<std::pair<uint64_t, std::string>> found;
  std::error_code ec;
  for (fs::directory_iterator it(dir, ec), end; !ec && it != end && found.size() < kMaxRanks; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (name.size() <= kHead.size() + kTail.size() || name.compare(0, kHead.size(), kHead) != 0 ||
        name.compare(name.size() - kTail.size(), kTail.size(), kTail) != 0) {
      continue;
    }
    uint64_t rank = 0;
    const char *from = name.data() + kHead.size(), *to = name.data() + name.size() - kTail.size();
    auto [stop, error] = std::from_chars(from, to, rank);
    if (error == std::errc() && stop == to) found.emplace_back(rank, name);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> out;
  for (auto& file : found) out.push_back(std::move(file.second));
  return out;
}

Result<DcpMetadata> read_file(const fs::path& path, const ReadOptions& options) {
  CKPT_TRY_ASSIGN(std::string pickle, io::read_file(path, options.max_metadata_bytes));
  auto metadata = parse_dcp_metadata(as_bytes(pickle), options.max_metadata_bytes,
                                     options.locate_data ? KeyPaths::kRead : KeyPaths::kSkip);
  if (!metadata) metadata.error().subject = path.string();
  return metadata;
}

/// `.metadata`, or what the ranks have instead.
Result<DcpMetadata> read_metadata(const fs::path& dir, const ReadOptions& options) {
  auto whole = read_file(dir / ".metadata", options);
  if (whole || whole.error().code != Code::kNotFound) return whole;
  RankMetadata all;
  const std::vector<std::string> ranks = rank_files(dir);
  for (const std::string& name : ranks) {
    CKPT_TRY_ASSIGN(DcpMetadata next, read_file(dir / name, options));
    auto added = all.add(std::move(next));
    if (!added) {
      added.error().subject = (dir / name).string();
      return Unexpected(std::move(added).error());
    }
  }
  if (!ranks.empty()) return all.take();
  return fail(Code::kCorrupt, dir.string(), "its .metadata is missing: the save did not finish, or files were lost");
}

/// Puts reformulated tensors back into their original shape: by what is recorded, else (only where Megatron's record
/// was lost) by the model tensor of the same name.
void restore_shapes(DcpMetadata& metadata, bool megatron, tensor::Catalog& catalog) {
  std::unordered_map<std::string_view, const tensor::Shape*> shapes;
  if (megatron && !metadata.has_mcore_data) {
    for (const DcpTensor& t : metadata.tensors) shapes[t.tensor.key] = &t.tensor.shape;
  }
  std::vector<std::optional<tensor::Shape>> originals;
  size_t guessed = 0;
  std::string example;
  for (const DcpTensor& t : metadata.tensors) {
    originals.emplace_back();
    if (!t.original.empty()) {
      originals.back() = t.original;
    } else if (!shapes.empty()) {
      originals.back() = guess_original(t.tensor, [&](const std::string& key) {
        auto found = shapes.find(key);
        return found == shapes.end() ? nullptr : found->second;
      });
      if (originals.back() && guessed++ == 0) example = t.tensor.key;
    }
  }
  if (guessed > 0) {
    catalog.warnings.push_back(".metadata has lost the original shapes of " + std::to_string(guessed) +
                               " optimizer tensors (" + example +
                               " and so on); they were found through the model tensors of the same names");
  }
  for (size_t i = 0; i < originals.size(); ++i) {
    tensor::Tensor& t = metadata.tensors[i].tensor;
    if (!originals[i] || t.shape == *originals[i]) continue;
    tensor::Shape rows(t.shape.begin(), t.shape.end() - (t.shape.empty() ? 0 : 1));
    if (undo_reformulation(t, *originals[i])) {
      t.rows = std::move(rows);
    } else {
      catalog.warnings.push_back(
          t.key + ": its recorded original shape does not fit what is stored; it is left as it is stored");
    }
  }
}

/// common.pt, or (0.19 and later) the object that replaces it, which then is no ordinary object any more.
void find_common(tensor::Catalog& catalog, DamageLog& damage) {
  struct stat st{};
  const fs::path path = catalog.root / "common.pt";
  auto object = std::find_if(catalog.objects.begin(), catalog.objects.end(),
                             [](const tensor::Object& o) { return o.key == kCommonObject; });
  if (::stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode)) {
    catalog.common =
        tensor::FileRange{static_cast<uint32_t>(catalog.files.size()), 0, static_cast<uint64_t>(st.st_size)};
    catalog.files.push_back({"common.pt", static_cast<uint64_t>(st.st_size)});
  } else if (object != catalog.objects.end() && object->inline_bytes.empty()) {
    catalog.common = object->where;
    catalog.common_wrapped_in_list = true;
    catalog.objects.erase(object);
  } else {
    damage.add("", "common.pt", std::nullopt, "the common state is missing");
  }
}

}  // namespace

bool recognises_torch_dist(const fs::path& path) { return has_megatron_backend(path, "torch_dist"); }

bool recognises_dcp(const fs::path& path) {
  std::error_code ec;
  return fs::is_regular_file(path / ".metadata", ec) || !rank_files(path).empty();
}

Result<tensor::Catalog> read_torch_dist(const fs::path& path, const ReadOptions& options) {
  CKPT_TRY_ASSIGN(auto megatron, read_megatron_metadata(path));
  tensor::Catalog catalog;
  catalog.format = megatron ? "torch_dist" : "dcp";
  catalog.root = path;
  auto metadata = read_metadata(path, options);
  if (!metadata) return std::move(metadata).error();

  nlohmann::json facts = nlohmann::json::object();
  if (megatron) facts["metadata_json"] = nlohmann::json::parse(megatron->json, nullptr, false);
  if (!metadata->version.empty()) facts["version"] = metadata->version;
  for (const std::string& file : metadata->paths) catalog.files.push_back({file, 0});

  DamageLog damage;
  for (const tensor::Finding& finding : metadata->damage)
    damage.add(finding.key, finding.file, finding.offset, finding.message);
  catalog.unsupported = std::move(metadata->unsupported);
  catalog.warnings = std::move(metadata->warnings);
  DamageLog places;
  check_item_ranges(*metadata, catalog, places);
  if (options.locate_data) {
    damage.append(places);
    // Without sound places there is nothing to look into, unless all that is wrong is wanted.
    if (places.empty() || options.tolerate_damage) CKPT_TRY(locate_items(*metadata, catalog, damage));
  }
  restore_shapes(*metadata, megatron.has_value(), catalog);

  catalog.objects = std::move(metadata->objects);
  catalog.empty_items = std::move(metadata->empty_items);
  bool encoded = false;
  for (DcpTensor& t : metadata->tensors) {
    for (const tensor::Shard& shard : t.tensor.shards)
      encoded = encoded || shard.encoding == tensor::Encoding::kEncoded;
    catalog.tensors.push_back(std::move(t.tensor));
  }
  if (encoded) catalog.decoder = item_decoder();
  if (megatron) {
    for (tensor::Object& object : catalog.objects) object.wrapped_in_list = true;
    find_common(catalog, damage);
    auto content = nlohmann::json::parse(content_metadata_json(catalog), nullptr, false);
    if (!content.is_discarded()) facts["content_metadata"] = std::move(content);
  }
  catalog.metadata_json = facts.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return finish_catalog(std::move(catalog), std::move(damage), options);
}

}  // namespace ckpt::formats
