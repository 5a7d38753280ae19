#include "formats/zarr/array_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "formats/folders.h"
#include "formats/zarr/shard_index.h"
#include "lib/base/checked.h"
#include "lib/base/io.h"

namespace ckpt::formats {

namespace fs = std::filesystem;

namespace {

/// Chunks that a grid may have beyond the files that are there: more are not plausible, and none is looked up.
constexpr uint64_t kMaxAbsent = 1 << 20;
/// The same limit for the sum over all arrays, which would else grow with their number.
constexpr uint64_t kMaxAbsentOfAll = 2 << 20;
/// Inner chunks of all arrays: each one is a shard of its tensor in memory.
constexpr uint64_t kMaxInner = 4 << 20;

/// Files below an array's folder; with `/` between the numbers they lie in nested folders.
uint64_t count_files(const fs::path& dir, bool nested) {
  uint64_t count = 0;
  std::error_code ec;
  if (!nested) {
    for (fs::directory_iterator it(dir, ec), end; !ec && it != end; it.increment(ec)) ++count;
  } else {
    for (fs::recursive_directory_iterator it(dir, ec), end; !ec && it != end; it.increment(ec)) {
      if (it.depth() > 64) it.disable_recursion_pending();
      ++count;
    }
  }
  return count;
}

/// To the next index of a grid, the last axis (in the given order) first.
void step(tensor::Shape& index, const tensor::Shape& grid) {
  for (size_t axis = grid.size(); axis-- > 0;) {
    if (++index[axis] < grid[axis]) return;
    index[axis] = 0;
  }
}

}  // namespace

/// A stored box: a chunk file, or a chunk in a shard. `shape` may reach over the array's edge.
struct ZarrArrays::Chunk {
  tensor::Shape offset, shape;
  tensor::FileRange where;

  /// The part of it that lies in the array; nothing: none does.
  std::optional<tensor::Shard> shard(const ZarrArray& array) const {
    tensor::Shard out;
    out.offset = offset;
    out.shape = shape;
    out.where = where;
    for (size_t i = 0; i < shape.size(); ++i) {
      if (offset[i] >= array.shape[i]) return std::nullopt;
      out.shape[i] = std::min(shape[i], array.shape[i] - offset[i]);
    }
    if (out.shape != shape) out.stored_shape = shape;
    return out;
  }
  std::optional<tensor::Shard> filled(const ZarrArray& array) const {
    auto out = shard(array);
    if (out) {
      out->encoding = tensor::Encoding::kFill;
      out->where = {};
      out->stored_shape.clear();
    }
    return out;
  }
};

Result<void> ZarrDecoder::decode(const tensor::Tensor& tensor, const tensor::Shard& shard, ByteSpan encoded,
                                 MutableByteSpan out) const {
  auto after = std::upper_bound(arrays_.begin(), arrays_.end(), shard.where.file,
                                [](uint32_t file, const auto& entry) { return file < entry.first; });
  if (after == arrays_.begin()) return fail(Code::kBug, tensor.key, "no decoder");
  const ZarrArray& array = std::prev(after)->second;
  if (array.axes.empty()) return decode_steps(array.codecs, encoded, out);
  std::vector<std::byte> other(out.size());
  CKPT_TRY(decode_steps(array.codecs, encoded, other));
  tensor::to_row_major(array.stored_chunk(), array.axes, tensor::item_size(array.dtype), other, out);
  return {};
}

ZarrArrays::ZarrArrays(tensor::Catalog& catalog, DamageLog& damage, const ReadOptions& options)
    : catalog_(catalog), damage_(damage), options_(options), inner_left_(kMaxInner) {}

Result<void> ZarrArrays::add(const std::string& folder, const std::string& meta, const std::string& key,
                             Result<ZarrArray> array) {
  if (!array && array.error().code == Code::kUnsupported) {
    catalog_.unsupported.push_back({key, array.error().message});
    return {};
  }
  if (!array && !answers_no(array.error().code)) return std::move(array).error();
  if (!array) {
    damage_.add(key, meta, std::nullopt, array.error());
    return {};
  }
  if (array->void_bfloat16)
    catalog_.warnings.push_back(key + ": dtype V2 is taken as bfloat16: the save may not have finished");
  tensor::Tensor tensor;
  tensor.key = key;
  tensor.dtype = array->dtype;
  tensor.shape = array->shape;
  tensor.fill_value = array->fill;
  const auto first_file = static_cast<uint32_t>(catalog_.files.size());
  add_chunks(folder, *array, tensor);
  if (!array->raw()) decoder_->add(first_file, std::move(*array));
  catalog_.tensors.push_back(std::move(tensor));
  return {};
}

void ZarrArrays::add_chunks(const std::string& folder, const ZarrArray& array, tensor::Tensor& tensor) {
  const tensor::Shape grid = array.grid();
  const uint64_t chunks = tensor::element_count(grid).value_or(0);  // no more than the elements, which were counted
  if (chunks == 0) return;
  const fs::path dir = folder.empty() ? catalog_.root : catalog_.root / folder;
  const uint64_t files = count_files(dir, array.separator == '/');
  const uint64_t absent = chunks - std::min(chunks, files);
  if (absent <= kMaxAbsent) absent_ += absent;
  if (absent > kMaxAbsent || absent_ > kMaxAbsentOfAll) {
    damage_.add(tensor.key, folder, std::nullopt,
                "at least " + std::to_string(absent) + " of " + std::to_string(chunks) + " chunks are missing");
    return;
  }
  const std::string prefix = folder.empty() ? "" : folder + "/";
  tensor::Shape index(grid.size(), 0);
  for (uint64_t n = 0; n < chunks; ++n, step(index, grid)) {
    Chunk chunk{index, array.chunks, {}};
    for (size_t i = 0; i < index.size(); ++i) chunk.offset[i] = index[i] * array.chunks[i];
    add_chunk(array, tensor, prefix + array.chunk_name(index), std::move(chunk));
  }
}

void ZarrArrays::add_chunk(const ZarrArray& array, tensor::Tensor& tensor, std::string path, Chunk chunk) {
  struct stat st{};
  if (::stat((catalog_.root / path).c_str(), &st) != 0) {
    // A chunk that is not there stands for the fill value; one whose link leads to nothing is lost.
    if (!array.fill.empty() && !has_entry(catalog_.root / path)) return tensor.shards.push_back(*chunk.filled(array));
    damage_.add(tensor.key, path, std::nullopt, "the chunk is missing");
    auto shard = *chunk.filled(array);
    shard.encoding = tensor::Encoding::kRaw;
    return tensor.shards.push_back(std::move(shard));
  }
  const auto size = static_cast<uint64_t>(st.st_size);
  const auto expected = array.sharding.empty() ? array.stored_chunk_bytes() : std::nullopt;
  if (!S_ISREG(st.st_mode)) {
    damage_.add(tensor.key, path, std::nullopt, "the chunk is not a regular file");
  } else if (expected && size != *expected) {
    damage_.add(tensor.key, path, std::min(size, *expected),
                "the chunk has " + std::to_string(size) + " bytes instead of " + std::to_string(*expected));
  } else if (size == 0) {
    damage_.add(tensor.key, path, 0, "the chunk is empty");
  }
  chunk.where = {static_cast<uint32_t>(catalog_.files.size()), 0, size};
  catalog_.files.push_back({path, size});
  if (array.sharding.empty() || !S_ISREG(st.st_mode)) {
    auto shard = *chunk.shard(array);
    shard.encoding = array.raw() ? tensor::Encoding::kRaw : tensor::Encoding::kEncoded;
    return tensor.shards.push_back(std::move(shard));
  }
  const size_t before = tensor.shards.size();
  if (auto added = add_shard(array, 0, chunk, tensor); !added) {
    damage_.add(tensor.key, path, std::nullopt, added.error());
    tensor.shards.resize(before);
    tensor.shards.push_back(*chunk.filled(array));  // what tiles, so that the damage is told once
  }
}

Result<std::vector<std::byte>> ZarrArrays::read_index(const ZarrSharding& level, const Chunk& outer, uint64_t chunks) {
  auto bytes = shard_index_bytes(level, chunks);
  if (!bytes || *bytes > outer.where.length) return fail(Code::kCorrupt, "", "the shard is too short for its index");
  std::vector<std::byte> out(*bytes);
  CKPT_TRY_ASSIGN(UniqueFd fd, catalog_.open_file(outer.where.file));
  const uint64_t at = level.index_at_start ? 0 : outer.where.length - *bytes;
  CKPT_TRY(io::pread_exact(fd.get(), out, outer.where.offset + at, catalog_.files[outer.where.file].path));
  return out;
}

Result<void> ZarrArrays::add_shard(const ZarrArray& array, size_t depth, const Chunk& outer, tensor::Tensor& tensor) {
  const ZarrSharding& level = array.sharding[depth];
  const size_t rank = outer.shape.size();
  tensor::Shape grid(rank), index(rank, 0);  // by the order of the index
  for (size_t i = 0; i < rank; ++i) grid[i] = outer.shape[level.axes[i]] / level.chunk[level.axes[i]];
  const uint64_t chunks = tensor::element_count(grid).value_or(0);
  if (chunks > inner_left_) return fail(Code::kCorrupt, "", "there are more inner chunks than the limit");
  inner_left_ -= chunks;
  std::vector<ShardEntry> entries;
  if (options_.locate_data) {
    CKPT_TRY_ASSIGN(auto stored, read_index(level, outer, chunks));
    CKPT_TRY_ASSIGN(entries, parse_shard_index(level, stored, chunks, outer.where.length));
  }
  const bool innermost = depth + 1 == array.sharding.size();
  const auto expected = innermost ? array.stored_chunk_bytes() : std::nullopt;
  for (uint64_t n = 0; n < chunks; ++n, step(index, grid)) {
    Chunk inner{outer.offset, level.chunk, {outer.where.file, 0, 0}};
    for (size_t i = 0; i < rank; ++i) inner.offset[level.axes[i]] += index[i] * level.chunk[level.axes[i]];
    auto shard = inner.shard(array);
    if (!shard) continue;  // over the edge
    if (options_.locate_data) {
      const ShardEntry& entry = entries[n];
      if (entry.absent) {
        tensor.shards.push_back(*inner.filled(array));
        continue;
      }
      if (entry.length == 0 || entry.length != expected.value_or(entry.length)) {
        return fail(Code::kCorrupt, "", "an inner chunk has a wrong size, " + std::to_string(entry.length) + " bytes");
      }
      inner.where.offset = outer.where.offset + entry.offset;
      inner.where.length = entry.length;
      if (!innermost) {
        CKPT_TRY(add_shard(array, depth + 1, inner, tensor));
        continue;
      }
      shard->where = inner.where;
    }
    shard->encoding = array.raw() ? tensor::Encoding::kRaw : tensor::Encoding::kEncoded;
    tensor.shards.push_back(std::move(*shard));
  }
  return {};
}

void ZarrArrays::finish() {
  if (!decoder_->empty()) catalog_.decoder = decoder_;
}

}  // namespace ckpt::formats
