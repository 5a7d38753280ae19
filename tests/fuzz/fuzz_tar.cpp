// Archives of tar from a stranger; checksums, which a stranger can make, are made here.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "lib/store/tar.h"

using namespace ckpt;
using namespace ckpt::store;

namespace {

void make_checksums(std::string& archive) {
  for (size_t at = 0; at + kTarBlock <= archive.size(); at += kTarBlock) {
    if (archive.compare(at + 257, 5, "ustar") != 0) continue;
    unsigned sum = 0;
    for (size_t i = 0; i < kTarBlock; ++i)
      sum += i >= 148 && i < 156 ? unsigned{' '} : static_cast<unsigned char>(archive[at + i]);
    char text[8];
    std::snprintf(text, sizeof text, "%06o", sum & 0777777);
    std::memcpy(archive.data() + at + 148, text, 7);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string archive(reinterpret_cast<const char*>(data), size);
  make_checksums(archive);
  size_t at = 0;
  TarReader reader(
      [&](MutableByteSpan out) -> Result<size_t> {
        const size_t n = std::min(out.size(), archive.size() - at);
        std::memcpy(out.data(), archive.data() + at, n);
        at += n;
        return n;
      },
      "input");
  std::vector<std::byte> content(4096);
  for (auto entry = reader.next(); entry && *entry; entry = reader.next()) {
    for (uint64_t left = (*entry)->size; left != 0;) {
      const size_t n = std::min<uint64_t>(left, content.size());
      if (!reader.read(MutableByteSpan(content).first(n))) return 0;
      left -= n;
    }
  }
  return 0;
}
