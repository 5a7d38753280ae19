#include "formats/torch_dist/write_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "formats/megatron/metadata_json.h"
#include "formats/torch_dist/object_record.h"
#include "formats/torch_dist/record.h"
#include "lib/base/checked.h"
#include "lib/base/text.h"

namespace ckpt::torch_dist {

namespace {

using tensor::Catalog;
using tensor::Object;
using tensor::Shard;
using tensor::Tensor;

constexpr uint64_t kMaxItems = 20'000'000;
constexpr uint64_t kBytesPerFile = uint64_t{256} << 20;  ///< one file per so many, so that workers have files of their own
constexpr unsigned kMaxFiles = 64;
constexpr uint64_t kProgramMemory = uint64_t{48} << 20;
constexpr size_t kMaxCauses = 20;

bool valid_utf8(std::string_view s) {
  for (size_t i = 0; i < s.size();) {
    const auto c = static_cast<unsigned char>(s[i]);
    size_t n = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
    if (n == 0 || i + n > s.size()) return false;
    uint32_t point = n == 1 ? c : c & (0xffu >> (n + 1));
    for (size_t k = 1; k < n; ++k) {
      const auto b = static_cast<unsigned char>(s[i + k]);
      if ((b & 0xc0) != 0x80) return false;
      point = point << 6 | (b & 0x3f);
    }
    static constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    if (point < kLeast[n] || (point >= 0xd800 && point < 0xe000) || point > 0x10ffff) return false;
    i += n;
  }
  return true;
}

/// Megatron's parser wants "<key>/shard_<offset>_<shape>", with that one slash (formats.md 2.5).
bool is_sharded_object_name(std::string_view key) {
  const size_t slash = key.find('/');
  return slash != std::string_view::npos && slash > 0 && formats::parse_object_place(key.substr(slash + 1)).has_value();
}

Error with_causes(Error error, std::vector<std::string> causes) {
  const size_t more = causes.size() > kMaxCauses ? causes.size() - kMaxCauses : 0;
  causes.resize(causes.size() - more);
  if (more > 0) causes.push_back(fmt::format("and {} more", more));
  error.causes = std::move(causes);
  return error;
}

Result<void> check_names(const Plan& plan) {
  const Catalog& source = *plan.source;
  std::vector<std::string> bad;
  std::unordered_set<std::string_view> seen;
  auto check = [&](const std::string& key, bool object) {
    if (key.empty()) bad.push_back("a key without a name");
    else if (!valid_utf8(key)) bad.push_back(key + ": is not UTF-8");
    else if (object && plan.megatron && !is_sharded_object_name(key)) {
      bad.push_back(key + ": is not of the form KEY/shard_OFFSET_SHAPE, which Megatron's loader needs");
    }
    if (!seen.insert(key).second) bad.push_back(key + ": occurs twice");
  };
  for (uint32_t i : plan.tensors) check(source.tensors[i].key, false);
  for (uint32_t i : plan.objects) check(source.objects[i].key, true);
  if (bad.empty()) return {};
  return with_causes(Error(Code::kUsage, source.root.string(), "holds keys that torch_dist cannot name")
                         .with_hint("leave them out with --exclude"),
                     std::move(bad));
}

Result<void> check_tensor(const Plan& plan, const Tensor& tensor) {
  const Catalog& source = *plan.source;
  auto findings = check_shards(tensor);
  for (const Shard& shard : tensor.shards) {
    if (shard.encoding == tensor::Encoding::kFill) continue;
    const uint64_t end = checked_add(shard.where.offset, shard.where.length).value_or(UINT64_MAX);
    if (shard.where.file >= source.files.size() || end > source.files[shard.where.file].size) {
      findings.push_back(fmt::format("{}: a shard lies outside its file", tensor.key));
      continue;
    }
    auto stored = tensor::element_count(shard.stored_shape.empty() ? shard.shape : shard.stored_shape);
    auto bytes = stored ? checked_mul<uint64_t>(*stored, item_size(tensor.dtype)) : std::nullopt;
    if (!bytes || (shard.encoding == tensor::Encoding::kRaw && shard.where.length < *bytes)) {
      findings.push_back(fmt::format("{}: {} is truncated: {} bytes instead of {}", tensor.key,
                                     source.files[shard.where.file].path, shard.where.length, bytes.value_or(UINT64_MAX)));
    }
  }
  if (!findings.empty()) {
    return with_causes(Error(Code::kAnswerNo, tensor.key, "is damaged in the source"), std::move(findings));
  }
  const uint64_t need = decode_memory(tensor);
  if (need <= decode_budget(plan.options.max_memory)) return {};
  return Error(Code::kNoRoom, tensor.key, fmt::format("decoding one of its shards takes {}", human_bytes(need)))
      .with_hint(fmt::format("give --max-memory {}", need + kProgramMemory));
}

Result<void> add_tensors(Plan& plan) {
  const Catalog& source = *plan.source;
  for (uint32_t slot = 0; slot < plan.tensors.size(); ++slot) {
    const Tensor& tensor = source.tensors[plan.tensors[slot]];
    CKPT_TRY(check_tensor(plan, tensor));
    const uint64_t limit = plan.options.shard_size;
    const tensor::Grid& grid =
        plan.grids.emplace_back(limit > 0 ? tensor::Grid::slabs(tensor, limit) : tensor::Grid::as_stored(tensor));
    if (plan.items.size() + grid.size() > kMaxItems) {
      return Error(Code::kUsage, tensor.key, fmt::format("the checkpoint would have more than {} shards", kMaxItems))
          .with_hint("give a larger --shard-size");
    }
    for (size_t i = 0; i < grid.size(); ++i) {
      Item item;
      item.subject = slot;
      item.piece = i;
      item.length = tensor_record(tensor.dtype, grid.piece(tensor, i).shape).size();
      plan.items.push_back(item);
    }
    plan.payload_bytes += tensor.bytes();
  }
  return {};
}

Result<void> add_objects(Plan& plan) {
  for (uint32_t slot = 0; slot < plan.objects.size(); ++slot) {
    Item item;
    item.is_object = true;
    item.subject = slot;
    CKPT_TRY_ASSIGN(ObjectRecord record, object_record(*plan.source, plan.object(item), plan.megatron, Detail::kSize));
    item.length = record.size;
    plan.items.push_back(item);
    plan.payload_bytes += record.size;
  }
  return {};
}

/// Consecutive items to files of about equal size, so that what lies together in the source stays together.
void place_items(Plan& plan) {
  uint64_t total = 0;
  for (const Item& item : plan.items) total += item.length;
  uint64_t count = plan.options.files;
  if (count == 0) count = std::clamp<uint64_t>((total + kBytesPerFile - 1) / kBytesPerFile, 1, kMaxFiles);
  count = std::min<uint64_t>(count, plan.items.size());
  uint64_t done = 0;
  size_t next = 0;
  for (uint64_t file = 0; file < count; ++file) {
    FilePlan out;
    out.name = fmt::format("__0_{}.distcp", file);
    out.first = next;
    // Every file gets an item, and every later one is left one.
    const auto goal = static_cast<uint64_t>(static_cast<double>(total) * static_cast<double>(file + 1) / static_cast<double>(count));
    while (next < plan.items.size() - (count - file - 1)) {
      Item& item = plan.items[next];
      if (next > out.first && file + 1 < count && done + item.length / 2 > goal) break;
      item.offset = align_up<uint64_t>(out.size, item.is_object ? zip::kTorchAlignment : record_alignment(item.length));
      out.size = item.offset + item.length;
      done += item.length;
      ++next;
    }
    out.last = next;
    plan.total_bytes += out.size;
    plan.files.push_back(std::move(out));
  }
}

Result<void> plan_common(Plan& plan) {
  const Catalog& source = *plan.source;
  if (!plan.megatron) {
    if (!source.common) return {};
    return fail(Code::kUnsupported, source.root.string(), "a plain torch checkpoint has no place for its common state");
  }
  if (!source.common) {
    plan.common = CommonAction::kEmpty;
    plan.common_file = empty_dict_file();
    plan.notes.push_back("the source has no common state: common.pt holds an empty dict");
    return {};
  }
  if (!source.common_wrapped_in_list) {
    plan.common = CommonAction::kCopy;
    plan.total_bytes += source.common->length;
    return {};
  }
  plan.common = CommonAction::kUnwrap;
  CKPT_TRY_ASSIGN(plan.common_file, unwrapped_common(source));
  plan.total_bytes += plan.common_file.size();
  return {};
}

}  // namespace

uint64_t decode_memory(const Tensor& tensor, const Shard& shard) {
  if (shard.encoding != tensor::Encoding::kEncoded) return 0;
  const uint64_t stored = tensor::element_count(shard.stored_shape.empty() ? shard.shape : shard.stored_shape).value_or(0);
  const auto twice = checked_mul<uint64_t>(stored, uint64_t{2} * item_size(tensor.dtype)).value_or(UINT64_MAX);
  return checked_add(twice, shard.where.length).value_or(UINT64_MAX);
}

uint64_t decode_memory(const Tensor& tensor) {
  uint64_t out = 0;
  for (const Shard& shard : tensor.shards) out = std::max(out, decode_memory(tensor, shard));
  return out;
}

uint64_t decode_budget(uint64_t max_memory) {
  return max_memory > 2 * kProgramMemory ? max_memory - kProgramMemory : max_memory / 2;
}

Result<Plan> plan_write(const Catalog& source, const PlanOptions& options) {
  if (!source.unsupported.empty()) {
    return with_causes(Error(Code::kUnsupported, source.root.string(), "holds entries that cannot be converted"),
                       source.unsupported);
  }
  Plan plan;
  plan.source = &source;
  plan.options = options;
  plan.megatron = source.format != "dcp";
  auto wanted = [&](const std::string& key) { return !options.wanted || options.wanted(key); };
  for (uint32_t i = 0; i < source.tensors.size(); ++i) {
    if (wanted(source.tensors[i].key)) plan.tensors.push_back(i);
  }
  for (uint32_t i = 0; i < source.objects.size(); ++i) {
    if (wanted(source.objects[i].key)) plan.objects.push_back(i);
  }
  plan.excluded = source.tensors.size() + source.objects.size() - plan.tensors.size() - plan.objects.size();
  if (!plan.megatron) {
    plan.notes.push_back("a plain torch checkpoint: written without Megatron's metadata.json, and without the nesting of keys that "
                         "torch's whole-checkpoint export uses (loading into a model does not need it)");
  }
  CKPT_TRY(check_names(plan));
  CKPT_TRY(add_tensors(plan));
  CKPT_TRY(add_objects(plan));
  place_items(plan);
  CKPT_TRY(plan_common(plan));
  // The pickle: about 160 bytes for a piece's two entries, the keys, and as much for a tensor.
  for (uint32_t i : plan.tensors) plan.total_bytes += 2 * source.tensors[i].key.size() + 200;
  plan.total_bytes += plan.items.size() * 400 + 4096;
  return plan;
}

}  // namespace ckpt::torch_dist
