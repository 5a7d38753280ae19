#include "lib/tensor/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lib/base/checked.h"
#include "lib/base/text.h"
#include "lib/base/worker_pool.h"
#include "lib/tensor/elements.h"

namespace ckpt::tensor {

namespace {

constexpr uint64_t kProgramMemory = uint64_t{48} << 20;
constexpr size_t kMaxCauses = 20;
constexpr size_t kSearched = 64;  ///< to look at more shards for every region would be quadratic

const Shape& stored_shape(const Shard& shard) { return shard.stored_shape.empty() ? shard.shape : shard.stored_shape; }

/// The region's bytes inside a shard that holds it whole, if they are one run there.
std::optional<FileRange> run_in_shard(const Tensor& tensor, const Shard& shard, const Region& region) {
  if (shard.encoding != Encoding::kRaw) return std::nullopt;
  const Shape& stored = stored_shape(shard);
  uint64_t stride = item_size(tensor.dtype), length = stride, begin = 0;
  bool open = false;  // an inner axis is not taken whole: every axis before it must be a single step
  for (size_t axis = tensor.shape.size(); axis-- > 0;) {
    if (region.offset[axis] < shard.offset[axis] ||
        region.offset[axis] + region.shape[axis] > shard.offset[axis] + shard.shape[axis]) {
      return std::nullopt;
    }
    if (open && region.shape[axis] != 1) return std::nullopt;
    open = open || region.shape[axis] != stored[axis];
    begin += (region.offset[axis] - shard.offset[axis]) * stride;
    length *= region.shape[axis];
    stride *= stored[axis];
  }
  if (begin + length > shard.where.length) return std::nullopt;
  return FileRange{shard.where.file, shard.where.offset + begin, length};
}

std::vector<std::string> findings_of(const Catalog& source, const Tensor& tensor) {
  auto findings = check_shards(tensor);
  for (const Shard& shard : tensor.shards) {
    if (shard.encoding == Encoding::kFill) {
      if (tensor.fill_value.size() != item_size(tensor.dtype))
        findings.push_back(tensor.key + ": a shard is to be filled with nothing");
      continue;
    }
    const uint64_t end = checked_add(shard.where.offset, shard.where.length).value_or(UINT64_MAX);
    if (shard.where.file >= source.files.size() || end > source.files[shard.where.file].size) {
      findings.push_back(fmt::format("{}: a shard lies outside its file", tensor.key));
      continue;
    }
    auto stored = element_count(stored_shape(shard));
    auto bytes = stored ? checked_mul<uint64_t>(*stored, item_size(tensor.dtype)) : std::nullopt;
    if (!bytes || (shard.encoding == Encoding::kRaw && shard.where.length < *bytes)) {
      findings.push_back(fmt::format("{}: {} is truncated: {} bytes instead of {}", tensor.key,
                                     source.files[shard.where.file].path, shard.where.length,
                                     bytes.value_or(UINT64_MAX)));
    }
  }
  return findings;
}

Result<void> check_decoding(const Tensor& tensor, uint64_t need, uint64_t budget) {
  if (need <= budget) return {};
  return Error(Code::kNoRoom, tensor.key, fmt::format("decoding one of its shards takes {}", human_bytes(need)))
      .with_hint(fmt::format("give --max-memory {}", checked_add(need, kProgramMemory).value_or(UINT64_MAX)));
}

}  // namespace

uint64_t Target::bytes() const { return element_count(shape).value_or(0) * item_size(dtype); }

Selection Selection::all(const Catalog& source) {
  Selection out;
  out.source = &source;
  for (uint32_t i = 0; i < source.tensors.size(); ++i) {
    out.tensors.push_back({i, source.tensors[i].key, source.tensors[i].dtype, source.tensors[i].shape});
  }
  for (uint32_t i = 0; i < source.objects.size(); ++i) out.objects.push_back({i, source.objects[i].key});
  return out;
}

bool is_unchanged(const Selection& selection, const Target& target) {
  const Tensor& tensor = selection.tensor(target);
  return tensor.dtype == target.dtype && tensor.shape == target.shape;
}

Result<void> check_source(const Catalog& source, const Tensor& tensor, uint64_t budget) {
  auto findings = findings_of(source, tensor);
  if (!findings.empty()) {
    Error error(Code::kCorrupt, tensor.key, "is damaged in the source");
    if (findings.size() > kMaxCauses) {
      const size_t more = findings.size() - kMaxCauses;
      findings.resize(kMaxCauses);
      findings.push_back(fmt::format("and {} more", more));
    }
    error.causes = std::move(findings);
    return error;
  }
  return check_decoding(tensor, decode_memory(tensor), budget);
}

Result<void> DecodeLimit::add(const Tensor& tensor, unsigned sides) {
  const uint64_t need = checked_mul<uint64_t>(decode_memory(tensor), sides).value_or(UINT64_MAX);
  largest_ = std::max(largest_, need);
  return check_decoding(tensor, need, budget_);
}

unsigned DecodeLimit::workers(unsigned asked) const {
  const unsigned threads = WorkerPool::threads_for(asked);
  return largest_ == 0 ? threads : static_cast<unsigned>(std::clamp<uint64_t>(budget_ / largest_, 1, threads));
}

uint64_t decode_memory(const Tensor& tensor, const Shard& shard) {
  if (shard.encoding != Encoding::kEncoded) return 0;
  const uint64_t stored = element_count(stored_shape(shard)).value_or(0);
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

uint64_t block_bytes(const Selection& selection, const Target& target, const Shape& region, uint64_t limit) {
  const Tensor& tensor = selection.tensor(target);
  if (region.empty() || tensor.shards.empty() || tensor.shards[0].encoding != Encoding::kEncoded) return limit;
  const uint64_t rows = stored_shape(tensor.shards[0])[0];
  uint64_t row = item_size(target.dtype);
  for (size_t axis = 1; axis < region.size(); ++axis) row *= region[axis];
  if (rows == 0 || row == 0 || rows > limit / row) return limit;
  return limit / row / rows * rows * row;
}

Result<void> TargetReader::read(const Target& target, const Region& region, MutableByteSpan out) {
  const Tensor& tensor = selection_.tensor(target);
  if (tensor.dtype == target.dtype) return read_stored(target, region, out);
  stored_.resize(out.size() / item_size(target.dtype) * item_size(tensor.dtype));
  CKPT_TRY(read_stored(target, region, stored_));
  auto done = convert_elements(tensor.dtype, target.dtype, stored_, out);
  if (!done) done.error().subject = target.key;
  return done;
}

/// In the source's type.
Result<void> TargetReader::read_stored(const Target& target, const Region& region, MutableByteSpan out) {
  const Tensor& tensor = selection_.tensor(target);
  if (target.shape == tensor.shape) return reader_.read(tensor, region, out);
  Region inside = region;  // the part of it that the source has
  for (size_t axis = 0; axis < region.shape.size(); ++axis) {
    const uint64_t end = std::min(region.offset[axis] + region.shape[axis], tensor.shape[axis]);
    inside.shape[axis] = end > region.offset[axis] ? end - region.offset[axis] : 0;
  }
  if (inside.shape == region.shape) return reader_.read(tensor, region, out);
  std::memset(out.data(), 0, out.size());
  const uint64_t count = element_count(inside.shape).value_or(0);
  if (count == 0) return {};
  part_.resize(count * item_size(tensor.dtype));
  CKPT_TRY(reader_.read(tensor, inside, part_));
  place_corner(part_, inside.shape, out, region.shape, item_size(tensor.dtype));
  return {};
}

std::optional<FileRange> raw_run(const Tensor& tensor, const Region& region, std::optional<uint32_t> hint) {
  if (hint) return run_in_shard(tensor, tensor.shards[*hint], region);
  if (tensor.shards.size() > kSearched) return std::nullopt;
  for (const Shard& shard : tensor.shards) {
    if (auto run = run_in_shard(tensor, shard, region)) return run;
  }
  return std::nullopt;
}

std::optional<FileRange> raw_run(const Selection& selection, const Target& target, const Region& region,
                                 std::optional<uint32_t> hint) {
  const Tensor& tensor = selection.tensor(target);
  return tensor.dtype == target.dtype ? raw_run(tensor, region, hint) : std::nullopt;
}

}  // namespace ckpt::tensor
