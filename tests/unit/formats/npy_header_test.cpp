#include "formats/npy/header.h"

#include <doctest/doctest.h>

using namespace ckpt;
using namespace ckpt::formats;
using tensor::DType;

TEST_CASE("npy header: what numpy writes") {
  // np.save of np.zeros((3,), '<f4'), numpy 1.26.
  std::string expected("\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", 67);
  expected.append(128 - 1 - expected.size(), ' ');
  CHECK(npy_header(DType::kFloat32, {3}) == expected + "\n");
  CHECK(npy_header(DType::kInt8, {}).find("'|i1', 'fortran_order': False, 'shape': (), }") != std::string::npos);
  CHECK(npy_header(DType::kBfloat16, {2, 3}).find("'<V2', 'fortran_order': False, 'shape': (2, 3), }") !=
        std::string::npos);
}

TEST_CASE("npy header: the elements are aligned, whatever the shape; a long header is version 2") {
  for (size_t axes : {0, 1, 2, 5, 30, 60, 64, 10'000}) {
    for (uint64_t n : {uint64_t{1}, uint64_t{1234567}, UINT64_MAX}) {
      const std::string header = npy_header(DType::kComplex128, tensor::Shape(axes, n));
      CHECK(header.size() % 64 == 0);
      CHECK(header.back() == '\n');
      const bool wide = header[6] == 2;
      const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(header[i])); };
      const size_t length = wide ? byte(8) | byte(9) << 8 | byte(10) << 16 | byte(11) << 24 : byte(8) | byte(9) << 8;
      CHECK(header.size() == (wide ? 12u : 10u) + length);
      CHECK(wide == (axes == 10'000 && n != 1));
    }
  }
}
