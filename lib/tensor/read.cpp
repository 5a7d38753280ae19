#include "lib/tensor/read.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "lib/base/checked.h"
#include "lib/base/io.h"

namespace ckpt::tensor {

namespace {
constexpr uint64_t kWindow = 1 << 20;       ///< bytes read at once where the runs are short
constexpr uint64_t kDirect = 128 << 10;     ///< runs at least this long are read straight into their place
constexpr uint64_t kMaxEncoded = uint64_t{4} << 30;  ///< a codec needs the whole shard in memory
}  // namespace

Result<std::shared_ptr<const UniqueFd>> FileCache::open(uint32_t index) {
  {
    std::lock_guard lock(mutex_);
    auto found = index_.find(index);
    if (found != index_.end()) {
      recent_.splice(recent_.begin(), recent_, found->second);
      return found->second->second;
    }
  }
  CKPT_TRY_ASSIGN(UniqueFd fd, catalog_.open_file(index));
  auto shared = std::make_shared<const UniqueFd>(std::move(fd));
  std::lock_guard lock(mutex_);
  if (index_.count(index) != 0) return shared;  // another thread opened it meanwhile
  recent_.emplace_front(index, shared);
  index_[index] = recent_.begin();
  if (recent_.size() > limit_) {
    index_.erase(recent_.back().first);
    recent_.pop_back();
  }
  return shared;
}

Result<void> check_readable(const Catalog& catalog, const Tensor& tensor) {
  const std::vector<std::string> findings = check_shards(tensor);
  if (!findings.empty()) return fail(Code::kCorrupt, "", findings.front());
  for (const Shard& shard : tensor.shards) {
    if (element_count(shard.shape) == uint64_t{0}) continue;
    const bool there = shard.encoding == Encoding::kFill
                           ? tensor.fill_value.size() == item_size(tensor.dtype)
                           : shard.where.length != 0 && shard.where.file < catalog.files.size();
    if (!there) return fail(Code::kCorrupt, tensor.key, "bytes of it are missing");
  }
  return {};
}

RowMajorBlocks::RowMajorBlocks(const Shape& shape, uint32_t item_size, uint64_t max_bytes)
    : shape_(shape), block_(shape.size(), 1), at_(shape.size(), 0) {
  done_ = element_count(shape_).value_or(0) == 0;
  uint64_t room = std::max<uint64_t>(1, max_bytes / item_size);
  for (size_t axis = shape_.size(); axis-- > 0 && room > 1 && !done_;) {
    block_[axis] = std::min(shape_[axis], room);
    // An axis that is not taken whole ends the block: an outer one would break the order.
    room = block_[axis] == shape_[axis] ? room / shape_[axis] : 1;
  }
}

std::optional<Region> RowMajorBlocks::next() {
  if (done_) return std::nullopt;
  Region out{at_, block_};
  for (size_t i = 0; i < at_.size(); ++i) out.shape[i] = std::min(block_[i], shape_[i] - at_[i]);
  done_ = true;
  for (size_t axis = shape_.size(); axis-- > 0;) {
    at_[axis] += block_[axis];
    if (at_[axis] < shape_[axis]) {
      done_ = false;
      break;
    }
    at_[axis] = 0;
  }
  return out;
}

void place_corner(ByteSpan from, const Shape& from_shape, MutableByteSpan to, const Shape& to_shape,
                  uint32_t item_size) {
  const size_t rank = from_shape.size();
  const uint64_t run = rank == 0 ? item_size : from_shape[rank - 1] * item_size;
  if (run == 0) return;
  Shape at(rank, 0);
  for (uint64_t done = 0; done + run <= from.size(); done += run) {
    uint64_t place = 0;
    for (size_t axis = 0; axis < rank; ++axis) place = place * to_shape[axis] + at[axis];
    std::memcpy(to.data() + place * item_size, from.data() + done, run);
    for (size_t axis = rank > 0 ? rank - 1 : 0; axis-- > 0;) {
      if (++at[axis] < from_shape[axis]) break;
      at[axis] = 0;
    }
  }
}

/// Equal runs from a shard's bytes to a region's bytes: an odometer over the outer axes.
struct RegionReader::Copy {
  uint64_t run = 0;                      ///< bytes of one run
  uint64_t from = 0, to = 0;             ///< where the first one starts
  std::vector<uint64_t> count, from_step, to_step;  ///< per outer axis, outermost first; bytes

  /// Calls `each(from, to)` for every run; it returns Result<void>.
  template <class Each>
  Result<void> for_each(Each each) const {
    std::vector<uint64_t> at(count.size(), 0);
    uint64_t f = from, t = to;
    for (;;) {
      CKPT_TRY(each(f, t));
      size_t axis = count.size();
      for (;;) {
        if (axis == 0) return {};
        --axis;
        f += from_step[axis];
        t += to_step[axis];
        if (++at[axis] < count[axis]) break;
        f -= from_step[axis] * count[axis];
        t -= to_step[axis] * count[axis];
        at[axis] = 0;
      }
    }
  }

  uint64_t last_byte() const {
    uint64_t end = from + run;
    for (size_t i = 0; i < count.size(); ++i) end += (count[i] - 1) * from_step[i];
    return end;
  }
};

void RegionReader::index_tensor(const Tensor& tensor) {
  if (indexed_ == &tensor && order_.size() == tensor.shards.size()) return;
  indexed_ = &tensor;
  order_.resize(tensor.shards.size());
  std::iota(order_.begin(), order_.end(), 0);
  longest_ = 0;
  if (tensor.shape.empty()) return;
  for (const Shard& shard : tensor.shards) longest_ = std::max(longest_, shard.shape[0]);
  std::stable_sort(order_.begin(), order_.end(),
                   [&](uint32_t a, uint32_t b) { return tensor.shards[a].offset[0] < tensor.shards[b].offset[0]; });
}

Result<void> RegionReader::read(const Tensor& tensor, const Region& region, MutableByteSpan out) {
  auto count = element_count(region.shape);
  if (!count || region.shape.size() != tensor.shape.size() || *count * item_size(tensor.dtype) != out.size()) {
    return fail(Code::kBug, tensor.key, "the region and its buffer do not fit");
  }
  index_tensor(tensor);
  CKPT_TRY_ASSIGN(uint64_t covered, copy_shards(tensor, region, out));
  if (covered == out.size()) return {};
  std::memset(out.data(), 0, out.size());
  CKPT_TRY_ASSIGN(covered, copy_shards(tensor, region, out));
  return {};
}

/// The bytes of `out` that the shards cover; those that several cover count more than once.
Result<uint64_t> RegionReader::copy_shards(const Tensor& tensor, const Region& region, MutableByteSpan out) {
  uint64_t covered = 0;
  size_t first = 0;
  uint64_t end = UINT64_MAX;
  if (!tensor.shape.empty()) {
    end = region.offset[0] + region.shape[0];
    uint64_t lowest = region.offset[0] < longest_ ? 0 : region.offset[0] - longest_;
    first = static_cast<size_t>(
        std::lower_bound(order_.begin(), order_.end(), lowest,
                         [&](uint32_t shard, uint64_t at) { return tensor.shards[shard].offset[0] < at; }) -
        order_.begin());
  }
  for (size_t i = first; i < order_.size(); ++i) {
    const Shard& shard = tensor.shards[order_[i]];
    if (!tensor.shape.empty() && shard.offset[0] >= end) break;
    CKPT_TRY_ASSIGN(const uint64_t bytes, copy_shard(tensor, shard, region, out));
    covered += bytes;
  }
  return covered;
}

/// What of the region lies in the shard, in bytes.
Result<uint64_t> RegionReader::copy_shard(const Tensor& tensor, const Shard& shard, const Region& region,
                                          MutableByteSpan out) {
  const Shape& stored = shard.stored_shape.empty() ? shard.shape : shard.stored_shape;
  const size_t rank = tensor.shape.size();
  Copy copy;
  copy.run = item_size(tensor.dtype);
  uint64_t bytes = copy.run;
  uint64_t from_stride = copy.run, to_stride = copy.run;
  bool joined = true;  // the axes so far lie in one run on both sides
  for (size_t axis = rank; axis-- > 0;) {
    uint64_t begin = std::max(shard.offset[axis], region.offset[axis]);
    uint64_t end = std::min(shard.offset[axis] + shard.shape[axis], region.offset[axis] + region.shape[axis]);
    if (begin >= end) return uint64_t{0};
    bytes *= end - begin;
    copy.from += (begin - shard.offset[axis]) * from_stride;
    copy.to += (begin - region.offset[axis]) * to_stride;
    if (joined) {
      copy.run *= end - begin;
      joined = end - begin == stored[axis] && end - begin == region.shape[axis];
    } else {
      copy.count.insert(copy.count.begin(), end - begin);
      copy.from_step.insert(copy.from_step.begin(), from_stride);
      copy.to_step.insert(copy.to_step.begin(), to_stride);
    }
    from_stride *= stored[axis];
    to_stride *= region.shape[axis];
  }
  if (shard.encoding == Encoding::kRaw) {
    CKPT_TRY(copy_raw(tensor, shard, copy, out));
    return bytes;
  }
  if (shard.encoding == Encoding::kFill) {
    CKPT_TRY(copy.for_each([&](uint64_t, uint64_t to) -> Result<void> {
      for (uint64_t i = 0; i < copy.run; i += tensor.fill_value.size()) {
        std::memcpy(out.data() + to + i, tensor.fill_value.data(), tensor.fill_value.size());
      }
      return {};
    }));
    return bytes;
  }
  CKPT_TRY_ASSIGN(ByteSpan source, decoded(tensor, shard));
  CKPT_TRY(copy.for_each([&](uint64_t from, uint64_t to) -> Result<void> {
    std::memcpy(out.data() + to, source.data() + from, copy.run);
    return {};
  }));
  return bytes;
}

Result<void> RegionReader::copy_raw(const Tensor& tensor, const Shard& shard, const Copy& copy, MutableByteSpan out) {
  if (shard.where.file >= catalog_.files.size()) return fail(Code::kCorrupt, tensor.key, "a shard has no bytes");
  const std::string& name = catalog_.files[shard.where.file].path;
  if (copy.last_byte() > shard.where.length) return fail(Code::kCorrupt, name, "a shard is shorter than its shape");
  CKPT_TRY_ASSIGN(auto file, files_.open(shard.where.file));
  const uint64_t end = copy.last_byte();
  uint64_t window_at = 0, window_size = 0;
  return copy.for_each([&](uint64_t from, uint64_t to) -> Result<void> {
    if (copy.run >= kDirect) {
      return io::pread_exact(file->get(), out.subspan(to, copy.run), shard.where.offset + from, name);
    }
    if (from < window_at || from + copy.run > window_at + window_size) {
      window_at = from;
      window_size = std::min(kWindow, end - from);
      window_.resize(kWindow);
      CKPT_TRY(
          io::pread_exact(file->get(), MutableByteSpan(window_).first(window_size), shard.where.offset + from, name));
    }
    std::memcpy(out.data() + to, window_.data() + (from - window_at), copy.run);
    return {};
  });
}

Result<ByteSpan> RegionReader::decoded(const Tensor& tensor, const Shard& shard) {
  if (decoded_shard_ == &shard) return ByteSpan(decoded_);
  decoded_shard_ = nullptr;
  if (shard.where.file >= catalog_.files.size()) return fail(Code::kCorrupt, tensor.key, "a shard has no bytes");
  const std::string& name = catalog_.files[shard.where.file].path;
  auto count = element_count(shard.stored_shape.empty() ? shard.shape : shard.stored_shape);
  auto bytes = count ? checked_mul<uint64_t>(*count, item_size(tensor.dtype)) : std::nullopt;
  if (!bytes || *bytes > kMaxEncoded || shard.where.length > kMaxEncoded) {
    return fail(Code::kUnsupported, name, "an encoded shard is larger than 4 GiB");
  }
  if (!catalog_.decoder) return fail(Code::kBug, name, "an encoded shard without a decoder");
  CKPT_TRY_ASSIGN(auto file, files_.open(shard.where.file));
  encoded_.resize(shard.where.length);
  CKPT_TRY(io::pread_exact(file->get(), encoded_, shard.where.offset, name));
  decoded_.resize(*bytes);
  auto done = catalog_.decoder->decode(tensor, shard, encoded_, decoded_);
  if (!done) {
    if (done.error().subject.empty()) done.error().subject = name;
    return Unexpected(std::move(done).error());
  }
  decoded_shard_ = &shard;
  return ByteSpan(decoded_);
}

}  // namespace ckpt::tensor
