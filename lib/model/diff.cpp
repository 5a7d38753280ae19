#include "lib/model/diff.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>

#include "lib/base/io.h"
#include "lib/base/worker_pool.h"
#include "lib/tensor/grid.h"
#include "lib/tensor/read.h"
#include "lib/tensor/values.h"

namespace ckpt::model {

namespace {

constexpr uint64_t kBlockBytes = 256 << 10;
constexpr uint64_t kBoxBytes = uint64_t{64} << 20;

/// What comparing some elements has found.
struct Found {
  uint64_t elements = 0, different = 0;
  double max_abs = 0;
  std::optional<uint64_t> first;

  void add(uint64_t index, double distance) {
    ++different;
    if (!first) first = index;
    if (std::isnan(distance) || distance > max_abs) max_abs = std::isnan(max_abs) ? max_abs : distance;
  }
  void append(const Found& other) {
    elements += other.elements;
    different += other.different;
    if (!first) first = other.first;
    if (std::isnan(other.max_abs) || other.max_abs > max_abs) max_abs = std::isnan(max_abs) ? max_abs : other.max_abs;
  }
};

/// Distance of two numbers: 0 between equal ones (infinities included) and between NaN and NaN.
template <class Number>
double distance(Number a, Number b) {
  if constexpr (std::is_floating_point_v<Number>) {
    if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
    return std::fabs(a - b);
  } else {
    return static_cast<double>(a < b ? static_cast<uint64_t>(b) - static_cast<uint64_t>(a)
                                     : static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
  }
}

bool within(double distance, double b, const Tolerance& tolerance) {
  return distance == 0 || distance <= tolerance.absolute + tolerance.relative * std::fabs(b);
}

/// Complex numbers part by part, so that equal magnitudes do not hide what differs.
tensor::DType part_type(tensor::DType dtype) {
  switch (dtype) {
    case tensor::DType::kComplex32: return tensor::DType::kFloat16;
    case tensor::DType::kComplex64: return tensor::DType::kFloat32;
    case tensor::DType::kComplex128: return tensor::DType::kFloat64;
    default: return dtype;
  }
}

class Comparer {
 public:
  Comparer(tensor::DType a, tensor::DType b, const DiffOptions& options)
      : a_(a), b_(b), parts_(tensor::is_complex(a) ? 2 : 1), tolerance_(options.tolerance.value_or(Tolerance())),
        by_bits_(!options.tolerance && a == b) {}

  /// Equally many elements of each, whose first one has the index `base`.
  Found compare(ByteSpan a, ByteSpan b, uint64_t base) const {
    Found out;
    out.elements = a.size() / tensor::item_size(a_);
    if (a_ == b_ && a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0) return out;
    constexpr size_t kStep = 512;
    double x[2 * kStep], y[2 * kStep];
    for (size_t at = 0; at < out.elements; at += kStep) {
      const size_t count = std::min<size_t>(kStep, out.elements - at);
      const ByteSpan from_a = a.subspan(at * tensor::item_size(a_), count * tensor::item_size(a_));
      const ByteSpan from_b = b.subspan(at * tensor::item_size(b_), count * tensor::item_size(b_));
      if (a_ == b_ && std::memcmp(from_a.data(), from_b.data(), from_a.size()) == 0) continue;
      if (tensor::is_complex(a_) == tensor::is_complex(b_)) {
        tensor::to_doubles(part_type(a_), from_a, x);
        tensor::to_doubles(part_type(b_), from_b, y);
        for (size_t i = 0; i < count; ++i)
          step(out, base + at + i, i, from_a, from_b, x + i * parts_, y + i * parts_, parts_);
      } else {  // a complex number against a real one: magnitudes
        tensor::to_doubles(a_, from_a, x);
        tensor::to_doubles(b_, from_b, y);
        for (size_t i = 0; i < count; ++i) step(out, base + at + i, i, from_a, from_b, x + i, y + i, 1);
      }
    }
    return out;
  }

 private:
  void step(Found& out, uint64_t index, size_t i, ByteSpan a, ByteSpan b, const double* x, const double* y,
            size_t parts) const {
    if (by_bits_) {
      const size_t item = tensor::item_size(a_);
      if (std::memcmp(a.data() + i * item, b.data() + i * item, item) == 0) return;
    }
    double far = 0;
    bool close = !by_bits_;
    for (size_t part = 0; part < parts; ++part) {
      const double d = tensor::is_wide_integer(a_) && a_ == b_ ? wide_distance(a, b, i) : distance(x[part], y[part]);
      close = close && within(d, y[part], tolerance_);
      far = std::isnan(d) || d > far ? (std::isnan(far) ? far : d) : far;
    }
    if (!close) out.add(index, far);
  }

  double wide_distance(ByteSpan a, ByteSpan b, size_t i) const {
    uint64_t x, y;
    std::memcpy(&x, a.data() + 8 * i, 8);
    std::memcpy(&y, b.data() + 8 * i, 8);
    if (a_ == tensor::DType::kUint64) return distance(x, y);
    return distance(static_cast<int64_t>(x), static_cast<int64_t>(y));
  }

  tensor::DType a_, b_;
  size_t parts_;
  Tolerance tolerance_;
  bool by_bits_;
};

/// A box of a tensor that one worker compares.
struct BoxPair {
  size_t owner;  ///< index into CatalogDiff::both
  tensor::Region region;
  Found found;
  std::string unreadable;
};

/// Whose shards lead: the side whose shards cost most to be read in other boxes than their own.
const tensor::Tensor& leader(const TensorDiff& d) {
  auto encoded = [](const tensor::Tensor& t) {
    return std::any_of(t.shards.begin(), t.shards.end(),
                       [](const tensor::Shard& s) { return s.encoding == tensor::Encoding::kEncoded; });
  };
  return encoded(*d.b) && !encoded(*d.a) ? *d.b : *d.a;
}

uint64_t row_major_index(const tensor::Shape& shape, const tensor::Shape& at) {
  uint64_t out = 0;
  for (size_t i = 0; i < shape.size(); ++i) out = out * shape[i] + at[i];
  return out;
}

class Work {
 public:
  Work(const tensor::Catalog& a, const tensor::Catalog& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options), files_a_(a), files_b_(b) {}

  Result<void> compare(std::span<BoxPair> boxes, const std::vector<TensorDiff>& both) {
    tensor::RegionReader reader_a(a_, files_a_), reader_b(b_, files_b_);
    for (BoxPair& pair : boxes) {
      auto done = compare(reader_a, reader_b, pair, both[pair.owner]);
      if (done) continue;
      const Code code = done.error().code;
      if (!answers_no(code) && code != Code::kUnsupported && code != Code::kNotFound) return done;
      pair.unreadable = done.error().text();
    }
    return {};
  }

 private:
  Result<void> compare(tensor::RegionReader& reader_a, tensor::RegionReader& reader_b, BoxPair& pair,
                       const TensorDiff& d) {
    const Comparer comparer(d.a->dtype, d.b->dtype, options_);
    std::vector<std::byte> from_a, from_b;
    tensor::Tensor part;
    part.dtype = tensor::item_size(d.a->dtype) > tensor::item_size(d.b->dtype) ? d.a->dtype : d.b->dtype;
    part.shape = pair.region.shape;
    tensor::RowMajorBlocks blocks(part, kBlockBytes);
    while (auto block = blocks.next()) {
      if (options_.cancel != nullptr) CKPT_TRY(options_.cancel->check());
      for (size_t i = 0; i < block->offset.size(); ++i) block->offset[i] += pair.region.offset[i];
      CKPT_TRY(read(a_, files_a_, reader_a, *d.a, *block, from_a));
      CKPT_TRY(read(b_, files_b_, reader_b, *d.b, *block, from_b));
      Found found = comparer.compare(from_a, from_b, 0);
      if (found.first) found.first = index_of(*block, d.a->shape, *found.first);
      pair.found.append(found);
      options_.progress->advance(from_a.size() + from_b.size());
    }
    return {};
  }

  /// An index inside a box as one of the tensor.
  static uint64_t index_of(const tensor::Region& box, const tensor::Shape& shape, uint64_t index) {
    tensor::Shape at = box.offset;
    for (size_t axis = shape.size(); axis-- > 0;) {
      at[axis] += index % box.shape[axis];
      index /= box.shape[axis];
    }
    return row_major_index(shape, at);
  }

  static Result<void> read(const tensor::Catalog& catalog, tensor::FileCache& files, tensor::RegionReader& reader,
                           const tensor::Tensor& t, const tensor::Region& region, std::vector<std::byte>& out) {
    out.resize(*tensor::element_count(region.shape) * tensor::item_size(t.dtype));
    auto run = t.shards.size() <= 64 ? tensor::raw_run(t, region, std::nullopt) : std::nullopt;
    if (!run || run->file >= catalog.files.size()) return reader.read(t, region, out);
    CKPT_TRY_ASSIGN(auto file, files.open(run->file));
    return io::pread_exact(file->get(), out, run->offset, catalog.files[run->file].path);
  }

  const tensor::Catalog& a_;
  const tensor::Catalog& b_;
  const DiffOptions& options_;
  tensor::FileCache files_a_, files_b_;
};

std::vector<BoxPair> boxes_of(const CatalogDiff& diff) {
  std::vector<BoxPair> out;
  for (size_t owner = 0; owner < diff.both.size(); ++owner) {
    const TensorDiff& d = diff.both[owner];
    if (!d.same_shape || !d.unreadable.empty() || tensor::element_count(d.a->shape).value_or(0) == 0) continue;
    const tensor::Tensor& lead = leader(d);
    const tensor::Grid grid = tensor::Grid::as_stored(lead);
    for (size_t i = 0; i < grid.size(); ++i) {
      const tensor::Region shard = grid.piece(lead, i);
      tensor::Tensor box;
      box.dtype = lead.dtype;
      box.shape = shard.shape;
      tensor::RowMajorBlocks blocks(box, kBoxBytes);
      while (auto block = blocks.next()) {
        for (size_t axis = 0; axis < block->offset.size(); ++axis) block->offset[axis] += shard.offset[axis];
        out.push_back({owner, std::move(*block), {}, {}});
      }
    }
  }
  return out;
}

}  // namespace

bool CatalogDiff::equal() const {
  return only_a.empty() && only_b.empty() && unreadable.empty() &&
         std::all_of(both.begin(), both.end(), [](const TensorDiff& d) { return d.equal(); });
}

CatalogDiff compare_keys(const tensor::Catalog& a, const tensor::Catalog& b, const DiffOptions& options) {
  CatalogDiff out;
  std::set<std::string_view> left_out;
  for (const tensor::Catalog* catalog : {&a, &b}) {
    for (const tensor::Unreadable& entry : catalog->unsupported) {
      if (options.wanted && !options.wanted(entry.key)) continue;
      const bool first = left_out.insert(entry.key).second;
      if (first && !options.skip_unreadable) out.unreadable.push_back(entry);
    }
  }
  auto wanted = [&](const tensor::Tensor& t) {
    return (!options.wanted || options.wanted(t.key)) && left_out.count(t.key) == 0;
  };
  size_t i = 0, j = 0;
  while (i < a.tensors.size() || j < b.tensors.size()) {
    const tensor::Tensor* x = i < a.tensors.size() ? &a.tensors[i] : nullptr;
    const tensor::Tensor* y = j < b.tensors.size() ? &b.tensors[j] : nullptr;
    const int order = x == nullptr ? 1 : y == nullptr ? -1 : x->key.compare(y->key);
    if (order <= 0) ++i;
    if (order >= 0) ++j;
    if (!wanted(order <= 0 ? *x : *y)) continue;
    if (order < 0) {
      out.only_a.push_back(x);
    } else if (order > 0) {
      out.only_b.push_back(y);
    } else {
      TensorDiff d;
      d.a = x;
      d.b = y;
      d.same_shape = x->shape == y->shape;
      d.same_dtype = x->dtype == y->dtype;
      out.both.push_back(std::move(d));
    }
  }
  return out;
}

Result<CatalogDiff> compare_catalogs(const tensor::Catalog& a, const tensor::Catalog& b, const DiffOptions& options) {
  CatalogDiff out = compare_keys(a, b, options);
  for (TensorDiff& d : out.both) {
    auto readable = tensor::check_readable(a, *d.a);
    if (readable) readable = tensor::check_readable(b, *d.b);
    if (!readable) d.unreadable = readable.error().text();
  }
  std::vector<BoxPair> boxes = boxes_of(out);
  uint64_t total = 0;
  auto bytes_of = [&](const BoxPair& pair) {
    const TensorDiff& d = out.both[pair.owner];
    return *tensor::element_count(pair.region.shape) * (tensor::item_size(d.a->dtype) + tensor::item_size(d.b->dtype));
  };
  for (const BoxPair& pair : boxes) total += bytes_of(pair);
  options.progress->begin("compare", total);
  tensor::DecodeLimit limit(options.max_memory);
  for (const TensorDiff& d : out.both) {
    for (const tensor::Tensor* side : {d.a, d.b}) CKPT_TRY(limit.add(*side, 2));
  }
  Work work(a, b, options);
  WorkerPool pool(limit.workers(options.threads));
  for (size_t begin = 0; begin < boxes.size();) {
    size_t end = begin;  // small ones together
    for (uint64_t bytes = 0; end < boxes.size() && bytes < kBoxBytes && end - begin < 256; ++end)
      bytes += bytes_of(boxes[end]);
    auto part = std::span(boxes).subspan(begin, end - begin);
    if (!pool.submit([&work, &out, part] { return work.compare(part, out.both); })) break;
    begin = end;
  }
  CKPT_TRY(pool.finish());
  for (const BoxPair& pair : boxes) {
    TensorDiff& d = out.both[pair.owner];
    d.elements += pair.found.elements;
    d.different += pair.found.different;
    if (!d.first) d.first = pair.found.first;
    if (std::isnan(pair.found.max_abs) || pair.found.max_abs > d.max_abs) {
      d.max_abs = std::isnan(d.max_abs) ? d.max_abs : pair.found.max_abs;
    }
    if (d.unreadable.empty()) d.unreadable = pair.unreadable;
  }
  return out;
}

}  // namespace ckpt::model
