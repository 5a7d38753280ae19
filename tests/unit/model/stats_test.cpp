#include "lib/model/stats.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "lib/base/io.h"
#include "lib/tensor/values.h"
#include "tests/support/fixtures.h"

using namespace ckpt;
using namespace ckpt::tensor;
using namespace ckpt::model;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

template <class T>
ByteSpan bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

/// In two passes over long doubles.
Stats expected(DType dtype, ByteSpan elements) {
  std::vector<double> values(elements.size() / item_size(dtype));
  to_doubles(dtype, elements, values.data());
  Stats out;
  long double sum = 0, squares = 0;
  for (double x : values) {
    ++out.elements;
    if (std::isnan(x)) { ++out.nans; continue; }
    if (std::isinf(x)) { ++out.infs; continue; }
    out.zeros += x == 0;
    out.min = out.finite() == 1 ? x : std::min<long double>(out.min, x);
    out.max = out.finite() == 1 ? x : std::max<long double>(out.max, x);
    sum += x;
  }
  if (out.finite() == 0) return out;
  const long double mean = sum / out.finite();
  for (double x : values) {
    if (std::isfinite(x)) squares += (x - mean) * (x - mean);
  }
  out.mean = static_cast<double>(mean);
  out.m2 = static_cast<double>(squares);
  return out;
}

void check_equal(const Stats& a, const Stats& b) {
  CHECK(a.elements == b.elements);
  CHECK(a.nans == b.nans);
  CHECK(a.infs == b.infs);
  CHECK(a.zeros == b.zeros);
  CHECK(static_cast<double>(a.min) == static_cast<double>(b.min));
  CHECK(static_cast<double>(a.max) == static_cast<double>(b.max));
  const double scale = std::max({1e-300, std::fabs(b.mean), b.deviation()});
  CHECK(std::fabs(a.mean - b.mean) <= 1e-12 * scale);
  CHECK(std::fabs(a.deviation() - b.deviation()) <= 1e-9 * scale);
}

uint64_t next(uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

const DType kAll[] = {DType::kBool,         DType::kUint8,      DType::kInt8,           DType::kUint16,
                      DType::kInt16,        DType::kUint32,     DType::kInt32,          DType::kUint64,
                      DType::kInt64,        DType::kFloat16,    DType::kBfloat16,       DType::kFloat32,
                      DType::kFloat64,      DType::kComplex32,  DType::kComplex64,      DType::kComplex128,
                      DType::kFloat8E4m3fn, DType::kFloat8E5m2, DType::kFloat8E4m3fnuz, DType::kFloat8E5m2fnuz,
                      DType::kFloat8E8m0fnu};

}  // namespace

TEST_CASE("values: float8 is what its definitions say") {
  auto value = [](DType dtype, unsigned byte) { return byte_table(dtype)[byte]; };
  CHECK(value(DType::kFloat8E4m3fn, 0x7e) == 448);
  CHECK(value(DType::kFloat8E4m3fn, 0x01) == 0x1p-9f);
  CHECK(value(DType::kFloat8E4m3fn, 0xb8) == -1);
  CHECK(std::isnan(value(DType::kFloat8E4m3fn, 0x7f)));
  CHECK(value(DType::kFloat8E5m2, 0x7b) == 57344);
  CHECK(value(DType::kFloat8E5m2, 0x01) == 0x1p-16f);
  CHECK(value(DType::kFloat8E5m2, 0xfc) == -std::numeric_limits<float>::infinity());
  CHECK(std::isnan(value(DType::kFloat8E5m2, 0x7d)));
  CHECK(value(DType::kFloat8E4m3fnuz, 0x7f) == 240);
  CHECK(value(DType::kFloat8E4m3fnuz, 0x01) == 0x1p-10f);
  CHECK(std::isnan(value(DType::kFloat8E4m3fnuz, 0x80)));
  CHECK(value(DType::kFloat8E5m2fnuz, 0x7f) == 57344);
  CHECK(value(DType::kFloat8E5m2fnuz, 0x01) == 0x1p-17f);
  CHECK(std::isnan(value(DType::kFloat8E5m2fnuz, 0x80)));
  CHECK(value(DType::kFloat8E8m0fnu, 0) == 0x1p-127f);
  CHECK(value(DType::kFloat8E8m0fnu, 127) == 1);
  CHECK(std::isnan(value(DType::kFloat8E8m0fnu, 255)));
}

TEST_CASE("values: float16 and bfloat16, subnormal to infinite") {
  double out[6];
  to_doubles(DType::kFloat16, bytes_of<uint16_t>({0x0001, 0x03ff, 0x0400, 0x7bff, 0xfc00, 0x7e00}), out);
  CHECK(out[0] == 0x1p-24);
  CHECK(out[1] == 1023 * 0x1p-24);
  CHECK(out[2] == 0x1p-14);
  CHECK(out[3] == 65504);
  CHECK(out[4] == -kInf);
  CHECK(std::isnan(out[5]));
  to_doubles(DType::kBfloat16, bytes_of<uint16_t>({0x3f80, 0xc000, 0x0001}), out);
  CHECK(out[0] == 1);
  CHECK(out[1] == -2);
  CHECK(out[2] == 0x1p-133);
}

TEST_CASE("stats: any bits of any dtype, of any length, as two slow passes count them") {
  uint64_t state = 88172645463325252u;
  for (DType dtype : kAll) {
    CAPTURE(dtype_name(dtype));
    for (size_t count : {0, 1, 7, 8, 100, 2048, 2049, 10'000}) {
      std::vector<uint8_t> raw(count * item_size(dtype));
      for (uint8_t& b : raw) b = static_cast<uint8_t>(next(state) >> 24);
      // Random bits of wide floats have exponents of all sizes, whose squares overflow: keep to the middle.
      if (dtype == DType::kFloat64 || dtype == DType::kComplex128) {
        for (size_t i = 7; i < raw.size(); i += 8) raw[i] = static_cast<uint8_t>((raw[i] & 0x80) | 0x3f);
      }
      check_equal(stats_of(dtype, bytes_of(raw)), expected(dtype, bytes_of(raw)));
    }
  }
}

TEST_CASE("stats: every float16 and bfloat16 there is") {
  std::vector<uint16_t> all(65536), finite;
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (uint16_t h : all) {
    if ((h & 0x7c00) != 0x7c00) finite.push_back(h);
  }
  check_equal(stats_of(DType::kFloat16, bytes_of(all)), expected(DType::kFloat16, bytes_of(all)));
  check_equal(stats_of(DType::kFloat16, bytes_of(finite)), expected(DType::kFloat16, bytes_of(finite)));
  CHECK(stats_of(DType::kFloat16, bytes_of(all)).nans == 2046);
  CHECK(stats_of(DType::kBfloat16, bytes_of(all)).infs == 2);
}

TEST_CASE("stats: a small deviation about a large mean is not lost") {
  std::vector<float> ones(100'000);
  std::vector<double> high(100'000);
  for (size_t i = 0; i < ones.size(); ++i) {
    ones[i] = i % 2 == 0 ? 1.0f : 1.0f + 0x1p-20f;
    high[i] = 1e12 + static_cast<double>(i % 2);
  }
  CHECK(stats_of(DType::kFloat32, bytes_of(ones)).deviation() == doctest::Approx(0x1p-21).epsilon(1e-9));
  CHECK(stats_of(DType::kFloat64, bytes_of(high)).deviation() == doctest::Approx(0.5).epsilon(1e-9));
}

TEST_CASE("stats: 64-bit integers keep their last digit; NaN and infinities are left out of the rest") {
  Stats s = stats_of(DType::kInt64, bytes_of<int64_t>({INT64_MIN + 1, 0, INT64_MAX}));
  CHECK(static_cast<int64_t>(s.min) == INT64_MIN + 1);
  CHECK(static_cast<int64_t>(s.max) == INT64_MAX);
  s = stats_of(DType::kUint64, bytes_of<uint64_t>({UINT64_MAX, UINT64_MAX - 1}));
  CHECK(static_cast<uint64_t>(s.min) == UINT64_MAX - 1);
  const float inf = std::numeric_limits<float>::infinity();
  s = stats_of(DType::kFloat32, bytes_of<float>({NAN, inf, -inf, 0, -0.0f, 3}));
  CHECK(s.nans == 1);
  CHECK(s.infs == 2);
  CHECK(s.zeros == 2);
  CHECK(s.mean == 1);
  CHECK(s.max == 3);
  s = stats_of(DType::kFloat32, bytes_of<float>({NAN}));
  CHECK(s.finite() == 0);
  CHECK(s.deviation() == 0);
  s = stats_of(DType::kFloat64, bytes_of<double>({1e200, -1e200}));
  CHECK(s.mean == 0);
  CHECK(s.max == 1e200);
}

TEST_CASE("stats: complex numbers count by their magnitude") {
  Stats s =
      stats_of(DType::kComplex64, bytes_of<float>({3, 4, 0, 0, NAN, 1, 1, std::numeric_limits<float>::infinity()}));
  CHECK(s.elements == 4);
  CHECK(s.nans == 1);
  CHECK(s.infs == 1);
  CHECK(s.zeros == 1);
  CHECK(s.max == 5);
  CHECK(s.mean == 2.5);
}

TEST_CASE("stats: a tensor in any shards, stored larger, or filled, with any number of threads") {
  test::TempDir dir;
  std::vector<float> file;
  Catalog catalog;
  Tensor t;
  t.key = "w";
  t.shape = {300, 40};
  t.fill_value.resize(4);
  const float fill = 2;
  std::memcpy(t.fill_value.data(), &fill, 4);
  std::vector<float> whole(300 * 40, fill);
  auto add = [&](Shape offset, Shape shape, Shape stored) {
    Shard shard;
    shard.offset = offset;
    shard.shape = shape;
    shard.stored_shape = stored;
    const Shape& box = stored.empty() ? shape : stored;
    shard.where = {0, file.size() * 4, box[0] * box[1] * 4};
    for (uint64_t i = 0; i < box[0]; ++i) {
      for (uint64_t j = 0; j < box[1]; ++j) {
        const bool inside = i < shape[0] && j < shape[1];
        file.push_back(inside ? static_cast<float>(i * j) : NAN);
        if (inside) whole[(offset[0] + i) * 40 + offset[1] + j] = file.back();
      }
    }
    t.shards.push_back(shard);
  };
  add({0, 0}, {200, 25}, {});
  add({0, 25}, {200, 15}, {200, 25});
  Shard filled;
  filled.offset = {200, 0};
  filled.shape = {100, 40};
  filled.encoding = Encoding::kFill;
  t.shards.push_back(filled);
  REQUIRE(check_shards(t).empty());
  Tensor empty;
  empty.key = "nothing";
  empty.shape = {0, 3};
  REQUIRE(io::write_file(dir.path / "data", as_text(bytes_of(file))));
  catalog.root = dir.path;
  catalog.files = {{"data", file.size() * 4}};
  catalog.tensors = {t, empty};
  const Tensor* tensors[] = {&catalog.tensors[0], &catalog.tensors[1]};
  for (unsigned threads : {1u, 3u}) {
    auto stats = compute_stats(catalog, tensors, {threads, &null_progress(), nullptr});
    REQUIRE(stats);
    REQUIRE(stats->size() == 2);
    check_equal((*stats)[0], expected(DType::kFloat32, bytes_of(whole)));
    CHECK((*stats)[1].elements == 0);
  }
  Cancel cancel;
  cancel.request();
  auto stopped = compute_stats(catalog, tensors, {1, &null_progress(), &cancel});
  REQUIRE(!stopped);
  CHECK(stopped.error().code == Code::kInterrupted);
  std::filesystem::resize_file(dir.path / "data", 100);
  auto cut = compute_stats(catalog, tensors, {1, &null_progress(), nullptr});
  REQUIRE(!cut);
  CHECK(cut.error().code == Code::kCorrupt);
}
