#include "lib/parity/galois.h"

#include <dlfcn.h>

#include <array>
#include <cstring>

#include "lib/base/linkage.h"
#include "lib/base/result.h"

namespace ckpt::parity {

namespace {

constexpr unsigned kPolynomial = 0x11D;

struct Logarithms {
  std::array<uint8_t, 256> log{};
  std::array<uint8_t, 512> power{};  ///< twice over: a sum of two logarithms needs no reduction
};

constexpr Logarithms kLogarithms = [] {
  Logarithms out;
  unsigned value = 1;
  for (unsigned i = 0; i < 255; ++i) {
    out.power[i] = out.power[i + 255] = static_cast<uint8_t>(value);
    out.log[value] = static_cast<uint8_t>(i);
    value <<= 1;
    if ((value & 0x100) != 0) value ^= kPolynomial;
  }
  return out;
}();

void xor_into(std::byte* into, const std::byte* from, size_t size) {
  for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
    uint64_t a = 0, b = 0;
    std::memcpy(&a, into + i, sizeof a);
    std::memcpy(&b, from + i, sizeof b);
    a ^= b;
    std::memcpy(into + i, &a, sizeof a);
  }
}

/// The functions of ISA-L that are used, by the declarations of its erasure_code.h.
struct Isal {
  void (*init_tables)(int k, int rows, unsigned char* coefficients, unsigned char* tables) = nullptr;
  void (*multiply)(int len, unsigned char* tables, void* from, void* into) = nullptr;
  void (*multiply_add)(int len, int vec, int vec_i, unsigned char* tables, unsigned char* from,
                       unsigned char* into) = nullptr;
  bool loaded = false;
};

Isal load_isal() {
  Isal out;
  constexpr const char* kName = "libisal.so.2";
  if (!check_loads_libraries(kName)) return out;
  void* library = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return out;
  auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    return function != nullptr;
  };
  out.loaded = find("ec_init_tables", out.init_tables) && find("gf_vect_mul", out.multiply) &&
               find("gf_vect_mad", out.multiply_add);
  return out;
}

const Isal& isal() {
  static const Isal kIsal = load_isal();
  return kIsal;
}

/// The tables of ISA-L for one factor.
struct Tables {
  alignas(32) std::array<unsigned char, 32> bytes;
  explicit Tables(uint8_t factor) { isal().init_tables(1, 1, &factor, bytes.data()); }
};

unsigned char* raw(const std::byte* data) {
  return const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(data));
}

}  // namespace

uint8_t gf_multiply(uint8_t a, uint8_t b) {
  return a == 0 || b == 0 ? 0 : kLogarithms.power[kLogarithms.log[a] + kLogarithms.log[b]];
}

uint8_t gf_inverse(uint8_t a) {
  CKPT_ASSERT(a != 0);
  return kLogarithms.power[255 - kLogarithms.log[a]];
}

std::optional<Matrix> gf_invert(Matrix matrix) {
  const size_t n = matrix.size();
  Matrix out(n, std::vector<uint8_t>(n));
  for (size_t i = 0; i < n; ++i) out[i][i] = 1;
  for (size_t column = 0; column < n; ++column) {
    size_t pivot = column;
    while (pivot < n && matrix[pivot][column] == 0) ++pivot;
    if (pivot == n) return std::nullopt;
    std::swap(matrix[pivot], matrix[column]);
    std::swap(out[pivot], out[column]);
    const uint8_t scale = gf_inverse(matrix[column][column]);
    for (size_t i = 0; i < n; ++i) {
      matrix[column][i] = gf_multiply(matrix[column][i], scale);
      out[column][i] = gf_multiply(out[column][i], scale);
    }
    for (size_t row = 0; row < n; ++row) {
      const uint8_t factor = matrix[row][column];
      if (row == column || factor == 0) continue;
      for (size_t i = 0; i < n; ++i) {
        matrix[row][i] ^= gf_multiply(factor, matrix[column][i]);
        out[row][i] ^= gf_multiply(factor, out[column][i]);
      }
    }
  }
  return out;
}

// Eight bytes at a time, bit by bit of the factor (Horner): doubling shifts each byte and folds what falls out.
void gf_add_plain(MutableByteSpan into, ByteSpan from, uint8_t factor) {
  constexpr uint64_t kLow = 0xFEFEFEFEFEFEFEFEULL, kTop = 0x0101010101010101ULL;
  for (size_t i = 0; i < into.size(); i += sizeof(uint64_t)) {
    uint64_t value = 0, sum = 0, old = 0;
    std::memcpy(&value, from.data() + i, sizeof value);
    std::memcpy(&old, into.data() + i, sizeof old);
    for (unsigned bit = 0x80; bit != 0; bit >>= 1) {
      sum = ((sum << 1) & kLow) ^ (((sum >> 7) & kTop) * (kPolynomial & 0xFF));
      if ((factor & bit) != 0) sum ^= value;
    }
    old ^= sum;
    std::memcpy(into.data() + i, &old, sizeof old);
  }
}

void gf_add(MutableByteSpan into, ByteSpan from, uint8_t factor) {
  CKPT_ASSERT(into.size() == from.size() && into.size() % kBlockUnit == 0);
  if (factor == 1) return xor_into(into.data(), from.data(), into.size());
  if (!isal().loaded) return gf_add_plain(into, from, factor);
  Tables tables(factor);
  isal().multiply_add(static_cast<int>(into.size()), 1, 0, tables.bytes.data(), raw(from.data()), raw(into.data()));
}

void gf_scale(MutableByteSpan into, ByteSpan from, uint8_t factor) {
  CKPT_ASSERT(into.size() == from.size() && into.size() % kBlockUnit == 0);
  if (factor == 1) {
    std::memcpy(into.data(), from.data(), from.size());
  } else if (isal().loaded) {
    Tables tables(factor);
    isal().multiply(static_cast<int>(into.size()), tables.bytes.data(), raw(from.data()), raw(into.data()));
  } else {
    std::memset(into.data(), 0, into.size());
    gf_add_plain(into, from, factor);
  }
}

bool gf_has_isal() { return isal().loaded; }

}  // namespace ckpt::parity
