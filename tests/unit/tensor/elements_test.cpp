#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "lib/tensor/elements.h"

using namespace ckpt;
using namespace ckpt::tensor;

namespace {

template <class From, class To>
Result<To> one(DType from, DType to, From value) {
  std::vector<std::byte> in(sizeof value), out(sizeof(To));
  std::memcpy(in.data(), &value, sizeof value);
  CKPT_TRY(convert_elements(from, to, in, out));
  To made;
  std::memcpy(&made, out.data(), sizeof made);
  return made;
}

uint8_t small(DType to, float value) { return one<float, uint8_t>(DType::kFloat32, to, value).value(); }

constexpr DType kSmall[] = {DType::kFloat8E4m3fn, DType::kFloat8E5m2, DType::kFloat8E4m3fnuz, DType::kFloat8E5m2fnuz};

}  // namespace

TEST_CASE("elements: floats round to the nearest, ties to even") {
  auto brain = [](float v) { return one<float, uint16_t>(DType::kFloat32, DType::kBfloat16, v).value(); };
  CHECK(brain(1.0f) == 0x3f80);
  CHECK(brain(1.0f + 0x1p-8f) == 0x3f80);              // a tie, to even
  CHECK(brain(1.0f + 3 * 0x1p-8f) == 0x3f82);          // a tie, to even
  CHECK(brain(1.0f + 0x1p-8f + 0x1p-20f) == 0x3f81);
  CHECK(brain(-0.0f) == 0x8000);
  CHECK(brain(0x1p-133f) == 0x0001);                   // the smallest subnormal
  CHECK(brain(std::numeric_limits<float>::infinity()) == 0x7f80);
  CHECK((brain(std::nanf("")) & 0x7fff) > 0x7f80);
  auto half = [](double v) { return one<double, uint16_t>(DType::kFloat64, DType::kFloat16, v).value(); };
  CHECK(half(1.0) == 0x3c00);
  CHECK(half(1.0 + 0x1p-11) == 0x3c00);
  CHECK(half(1.0 + 0x1p-11 + 0x1p-40) == 0x3c01);      // through float32 it would be the tie
  CHECK(half(65504) == 0x7bff);
  CHECK(half(65519.99) == 0x7bff);
  CHECK(half(0x1p-24) == 0x0001);
  CHECK(half(0x1p-25) == 0x0000);
  CHECK(half(0x1.8p-25) == 0x0001);
  CHECK(half(0x1.ff8p-15) == 0x03ff);
  CHECK(half(0x1.ffep-15) == 0x0400);  // rounds up into the normal numbers
}

TEST_CASE("elements: 8-bit floats saturate, keep NaN, and refuse an infinity that they lack") {
  CHECK(small(DType::kFloat8E4m3fn, 448) == 0x7e);
  CHECK(small(DType::kFloat8E4m3fn, 1e30f) == 0x7e);
  CHECK(small(DType::kFloat8E4m3fn, -1e30f) == 0xfe);
  CHECK(small(DType::kFloat8E5m2, 1e30f) == 0x7b);
  CHECK(small(DType::kFloat8E5m2, std::numeric_limits<float>::infinity()) == 0x7c);
  CHECK(small(DType::kFloat8E4m3fnuz, 1e30f) == 0x7f);
  CHECK(small(DType::kFloat8E4m3fnuz, -0.0f) == 0);
  CHECK(small(DType::kFloat8E4m3fnuz, std::nanf("")) == 0x80);
  CHECK(small(DType::kFloat8E4m3fn, std::nanf("")) == 0x7f);
  for (DType dtype : {DType::kFloat8E4m3fn, DType::kFloat8E4m3fnuz, DType::kFloat8E5m2fnuz}) {
    auto lost = one<float, uint8_t>(DType::kFloat32, dtype, std::numeric_limits<float>::infinity());
    REQUIRE_FALSE(lost);
    CHECK(lost.error().code == Code::kCorrupt);
  }
}

TEST_CASE("elements: every 8-bit and 16-bit float comes back from the types that are wider") {
  for (DType dtype : kSmall) {
    for (int code = 0; code < 256; ++code) {
      const float wide = one<uint8_t, float>(dtype, DType::kFloat32, static_cast<uint8_t>(code)).value();
      if (std::isnan(wide)) continue;
      CHECK(small(dtype, wide) == code);
      CHECK(one<uint8_t, double>(dtype, DType::kFloat64, static_cast<uint8_t>(code)).value() == wide);
    }
  }
  for (DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    for (int code = 0; code < 65536; ++code) {
      const float wide = one<uint16_t, float>(dtype, DType::kFloat32, static_cast<uint16_t>(code)).value();
      if (std::isnan(wide)) continue;
      const int back = one<float, uint16_t>(DType::kFloat32, dtype, wide).value();
      REQUIRE(back == code);
    }
  }
}

TEST_CASE("elements: known codes of the 8-bit types") {
  auto value = [](DType dtype, int code) {
    return one<uint8_t, float>(dtype, DType::kFloat32, static_cast<uint8_t>(code)).value();
  };
  CHECK(value(DType::kFloat8E4m3fn, 0x38) == 1.0f);
  CHECK(value(DType::kFloat8E4m3fn, 0x01) == 0x1p-9f);
  CHECK(value(DType::kFloat8E5m2, 0x3c) == 1.0f);
  CHECK(std::isinf(value(DType::kFloat8E5m2, 0xfc)));
  CHECK(value(DType::kFloat8E4m3fnuz, 0x40) == 1.0f);
  CHECK(value(DType::kFloat8E4m3fnuz, 0x7f) == 240.0f);
  CHECK(value(DType::kFloat8E5m2fnuz, 0x40) == 1.0f);
  CHECK(value(DType::kFloat8E5m2fnuz, 0x7f) == 57344.0f);
  CHECK(value(DType::kFloat8E8m0fnu, 127) == 1.0f);
  CHECK(value(DType::kFloat8E8m0fnu, 0) == 0x1p-127f);
}

TEST_CASE("elements: what would be lost is refused and named") {
  auto lost = [](auto made) { return !made && made.error().code == Code::kCorrupt; };
  CHECK(lost(one<float, uint16_t>(DType::kFloat32, DType::kFloat16, 1e6f)));
  CHECK(lost(one<float, uint16_t>(DType::kFloat32, DType::kBfloat16, std::numeric_limits<float>::max())));
  CHECK(lost(one<double, float>(DType::kFloat64, DType::kFloat32, 1e300)));
  CHECK(lost(one<int32_t, int8_t>(DType::kInt32, DType::kInt8, 128)));
  CHECK(lost(one<int8_t, uint64_t>(DType::kInt8, DType::kUint64, -1)));
  CHECK(lost(one<uint64_t, int64_t>(DType::kUint64, DType::kInt64, uint64_t{1} << 63)));
  CHECK(lost(one<int64_t, double>(DType::kInt64, DType::kFloat64, (int64_t{1} << 53) + 1)));
  CHECK(lost(one<uint64_t, double>(DType::kUint64, DType::kFloat64, UINT64_MAX)));
  CHECK(lost(one<int64_t, float>(DType::kInt64, DType::kFloat32, (1 << 24) + 1)));
  CHECK(lost(one<int64_t, uint16_t>(DType::kInt64, DType::kBfloat16, 257)));
  CHECK(lost(one<int64_t, uint8_t>(DType::kInt64, DType::kFloat8E4m3fn, 449)));
  CHECK(one<int64_t, double>(DType::kInt64, DType::kFloat64, int64_t{1} << 53).value() == 0x1p53);
  CHECK(one<uint64_t, double>(DType::kUint64, DType::kFloat64, uint64_t{1} << 63).value() == 0x1p63);
  CHECK(one<int64_t, uint16_t>(DType::kInt64, DType::kBfloat16, 256).value() == 0x4380);
  CHECK(one<uint8_t, int64_t>(DType::kBool, DType::kInt64, 1).value() == 1);
  CHECK(one<float, uint16_t>(DType::kFloat32, DType::kFloat16, 1e6f).error().message.find("1000000") !=
        std::string::npos);
}

TEST_CASE("elements: types that cannot become each other are refused before anything is read") {
  CHECK(check_conversion(DType::kFloat32, DType::kInt64).error().code == Code::kUsage);
  CHECK_FALSE(check_conversion(DType::kInt64, DType::kBool));
  CHECK_FALSE(check_conversion(DType::kComplex64, DType::kFloat32));
  CHECK_FALSE(check_conversion(DType::kFloat32, DType::kComplex64));
  CHECK_FALSE(check_conversion(DType::kFloat32, DType::kFloat8E8m0fnu));
  CHECK(check_conversion(DType::kComplex64, DType::kComplex128));
  CHECK(check_conversion(DType::kFloat8E8m0fnu, DType::kFloat32));
  float pair[2] = {1.5f, -2.0f};
  double wide[2];
  REQUIRE(convert_elements(DType::kComplex64, DType::kComplex128, std::as_bytes(std::span(pair)),
                           std::as_writable_bytes(std::span(wide))));
  CHECK(wide[0] == 1.5);
  CHECK(wide[1] == -2.0);
}
