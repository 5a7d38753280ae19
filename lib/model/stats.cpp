#include "lib/model/stats.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "lib/base/io.h"
#include "lib/base/worker_pool.h"
#include "lib/model/stats_kernels.h"
#include "lib/tensor/grid.h"
#include "lib/tensor/read.h"
#include "lib/tensor/values.h"

namespace ckpt::model {

double Stats::deviation() const { return finite() == 0 ? 0 : std::sqrt(m2 / static_cast<double>(finite())); }

void Stats::merge(const Stats& other) {
  const uint64_t ours = finite(), theirs = other.finite();
  if (theirs != 0) {
    min = ours == 0 ? other.min : std::min(min, other.min);
    max = ours == 0 ? other.max : std::max(max, other.max);
    // Chan, Golub, LeVeque: sums of squares about two means.
    const double n = static_cast<double>(ours), m = static_cast<double>(theirs), delta = other.mean - mean;
    mean = ours == 0 ? other.mean : mean + delta * (m / (n + m));
    m2 += other.m2 + (ours == 0 ? 0 : delta * delta * (n * (m / (n + m))));
  }
  elements += other.elements;
  nans += other.nans;
  infs += other.infs;
  zeros += other.zeros;
}

void Stats::repeat(uint64_t times) {
  if (times == 0) *this = Stats();
  elements *= times;
  nans *= times;
  infs *= times;
  zeros *= times;
  m2 *= static_cast<double>(times);
}

namespace {

constexpr uint64_t kReadBytes = 256 << 10;           ///< read at once: stays in the cache until it has been counted
constexpr uint64_t kUnitBytes = uint64_t{64} << 20;  ///< what one worker takes at a time

/// Element by element: whatever they are.
Stats careful(tensor::DType dtype, ByteSpan elements) {
  Stats out;
  const uint32_t item = tensor::item_size(dtype);
  std::array<double, 512> values;
  for (size_t at = 0; at < elements.size(); at += values.size() * item) {
    const ByteSpan part = elements.subspan(at, std::min(elements.size() - at, values.size() * item));
    tensor::to_doubles(dtype, part, values.data());
    for (size_t i = 0; i < part.size() / item; ++i) {
      const double x = values[i];
      ++out.elements;
      if (std::isnan(x)) {
        ++out.nans;
      } else if (std::isinf(x)) {
        ++out.infs;
      } else {
        out.zeros += x == 0;
        const bool first = out.finite() == 1;
        out.min = first ? x : std::min<long double>(out.min, x);
        out.max = first ? x : std::max<long double>(out.max, x);
        const double delta = x - out.mean;
        out.mean += delta / static_cast<double>(out.finite());
        out.m2 += delta * (x - out.mean);
      }
    }
  }
  return out;
}

/// One-byte elements: how often each value occurs says all.
Stats from_histogram(tensor::DType dtype, ByteSpan elements) {
  std::array<std::array<uint64_t, 256>, 4> counts{};  // four, so that equal neighbours do not wait for each other
  size_t i = 0;
  for (; i + 4 <= elements.size(); i += 4) {
    for (size_t k = 0; k < 4; ++k) ++counts[k][static_cast<uint8_t>(elements[i + k])];
  }
  for (; i < elements.size(); ++i) ++counts[0][static_cast<uint8_t>(elements[i])];
  const tensor::ByteTable& table = tensor::byte_table(dtype);
  Stats out;
  for (size_t value = 0; value < 256; ++value) {
    const uint64_t times = counts[0][value] + counts[1][value] + counts[2][value] + counts[3][value];
    if (times == 0) continue;
    Stats one;
    const float x = table[value];
    one.elements = 1;
    if (std::isnan(x)) one.nans = 1;
    else if (std::isinf(x)) one.infs = 1;
    else one.min = one.max = one.mean = x;
    one.zeros = x == 0;
    one.repeat(times);
    out.merge(one);
  }
  return out;
}

/// 64-bit integers exactly; the block's sums are of doubles.
template <class T>
void exact_range(ByteSpan elements, Stats& stats) {
  T least = std::numeric_limits<T>::max(), most = std::numeric_limits<T>::min();
  for (size_t i = 0; i < elements.size(); i += sizeof(T)) {
    T x;
    std::memcpy(&x, elements.data() + i, sizeof x);
    least = std::min(least, x);
    most = std::max(most, x);
  }
  stats.min = least;
  stats.max = most;
}

Stats block_stats(tensor::DType dtype, ByteSpan elements, double shift) {
  const BlockSums sums = scan_block(dtype, elements, shift);
  if (!sums.usable) return careful(dtype, elements);
  Stats out;
  out.elements = elements.size() / tensor::item_size(dtype);
  out.zeros = sums.zeros;
  out.min = sums.min;
  out.max = sums.max;
  const double n = static_cast<double>(out.elements);
  out.mean = shift + sums.sum / n;
  out.m2 = std::max(0.0, sums.squares - sums.sum * (sums.sum / n));
  if (dtype == tensor::DType::kInt64) exact_range<int64_t>(elements, out);
  if (dtype == tensor::DType::kUint64) exact_range<uint64_t>(elements, out);
  return out;
}

/// Some of one shard's elements, in a box.
struct Unit {
  const tensor::Tensor* tensor;
  const tensor::Shard* shard;
  uint32_t shard_index;
  tensor::Region region;
  size_t owner;  ///< index of the tensor in the answer
  Stats stats;
};

/// A shard as a tensor of its own, to be cut into boxes.
tensor::Tensor box_of(const tensor::Tensor& tensor, const tensor::Shard& shard) {
  tensor::Tensor out;
  out.dtype = tensor.dtype;
  out.shape = shard.shape;
  return out;
}

tensor::Region moved(tensor::Region region, const tensor::Shape& by) {
  for (size_t i = 0; i < by.size(); ++i) region.offset[i] += by[i];
  return region;
}

class Counter {
 public:
  Counter(const tensor::Catalog& catalog, const StatsOptions& options)
      : catalog_(catalog), options_(options), files_(catalog) {}

  Result<void> count(std::span<Unit> units) {
    tensor::RegionReader reader(catalog_, files_);
    for (Unit& unit : units) CKPT_TRY(count(reader, unit));
    return {};
  }

 private:
  Result<void> count(tensor::RegionReader& reader, Unit& unit) {
    if (unit.shard->encoding == tensor::Encoding::kFill) {
      unit.stats = stats_of(unit.tensor->dtype, unit.tensor->fill_value);
      unit.stats.repeat(*tensor::element_count(unit.region.shape));
      return {};
    }
    std::vector<std::byte> buffer;
    tensor::Tensor part = box_of(*unit.tensor, *unit.shard);
    part.shape = unit.region.shape;
    tensor::RowMajorBlocks blocks(part, kReadBytes);
    while (auto block = blocks.next()) {
      if (options_.cancel != nullptr) CKPT_TRY(options_.cancel->check());
      const tensor::Region region = moved(std::move(*block), unit.region.offset);
      buffer.resize(*tensor::element_count(region.shape) * tensor::item_size(unit.tensor->dtype));
      CKPT_TRY(read(reader, unit, region, buffer));
      unit.stats.merge(stats_of(unit.tensor->dtype, buffer));
      options_.progress->advance(buffer.size());
    }
    return {};
  }

  Result<void> read(tensor::RegionReader& reader, const Unit& unit, const tensor::Region& region, MutableByteSpan out) {
    auto run = tensor::raw_run(*unit.tensor, region, unit.shard_index);
    if (!run || run->file >= catalog_.files.size()) return reader.read(*unit.tensor, region, out);
    CKPT_TRY_ASSIGN(auto file, files_.open(run->file));
    return io::pread_exact(file->get(), out, run->offset, catalog_.files[run->file].path);
  }

  const tensor::Catalog& catalog_;
  const StatsOptions& options_;
  tensor::FileCache files_;
};

std::vector<Unit> units_of(std::span<const tensor::Tensor* const> tensors) {
  std::vector<Unit> out;
  for (size_t owner = 0; owner < tensors.size(); ++owner) {
    const tensor::Tensor& tensor = *tensors[owner];
    for (uint32_t i = 0; i < tensor.shards.size(); ++i) {
      const tensor::Shard& shard = tensor.shards[i];
      if (tensor::element_count(shard.shape).value_or(0) == 0) continue;
      // An encoded shard is decoded as a whole, a filled one is not read: both are one unit.
      const uint64_t limit = shard.encoding == tensor::Encoding::kRaw ? kUnitBytes : UINT64_MAX;
      tensor::RowMajorBlocks blocks(box_of(tensor, shard), limit);
      while (auto block = blocks.next())
        out.push_back({&tensor, &shard, i, moved(std::move(*block), shard.offset), owner, {}});
    }
  }
  return out;
}

}  // namespace

Stats stats_of(tensor::DType dtype, ByteSpan elements) {
  const uint32_t item = tensor::item_size(dtype);
  if (item == 1) return from_histogram(dtype, elements);
  Stats out;
  double shift = 0;
  if (elements.size() >= item) tensor::to_doubles(dtype, elements.first(item), &shift);
  if (!std::isfinite(shift)) shift = 0;
  for (size_t at = 0; at < elements.size(); at += kBlockElements * item) {
    out.merge(block_stats(dtype, elements.subspan(at, std::min(elements.size() - at, kBlockElements * item)), shift));
    shift = out.mean;
  }
  return out;
}

Result<std::vector<Stats>> compute_stats(const tensor::Catalog& catalog, std::span<const tensor::Tensor* const> tensors,
                                         const StatsOptions& options) {
  std::vector<Unit> units = units_of(tensors);
  uint64_t total = 0;
  for (const Unit& unit : units) {
    if (unit.shard->encoding != tensor::Encoding::kFill)
      total += *tensor::element_count(unit.region.shape) * tensor::item_size(unit.tensor->dtype);
  }
  options.progress->begin("statistics", total);
  tensor::DecodeLimit limit(options.max_memory);
  for (const tensor::Tensor* t : tensors) CKPT_TRY(limit.add(*t));
  Counter counter(catalog, options);
  WorkerPool pool(limit.workers(options.threads));
  for (size_t begin = 0; begin < units.size();) {
    // Small ones together: a job for each of 100,000 biases would cost more than counting them.
    size_t end = begin;
    for (uint64_t bytes = 0; end < units.size() && bytes < kUnitBytes && end - begin < 256; ++end) {
      bytes += *tensor::element_count(units[end].region.shape) * tensor::item_size(units[end].tensor->dtype);
    }
    if (!pool.submit([&counter, part = std::span(units).subspan(begin, end - begin)] { return counter.count(part); }))
      break;
    begin = end;
  }
  CKPT_TRY(pool.finish());
  std::vector<Stats> out(tensors.size());
  for (const Unit& unit : units) out[unit.owner].merge(unit.stats);
  return out;
}

}  // namespace ckpt::model
