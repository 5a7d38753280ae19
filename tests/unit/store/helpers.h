// Images made of pages that a seed describes, and the memory that they should resolve to.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "lib/store/image.h"
#include "tests/support/temp_dir.h"
#include "tests/support/why.h"

namespace ckpt::store::test {

namespace fs = std::filesystem;
using ckpt::test::TempDir;

using Rng = std::mt19937_64;
using Bytes = std::vector<std::byte>;

inline Bytes random_page(uint64_t seed) {
  Bytes out(kPageSize);
  Rng rng(seed);
  for (size_t i = 0; i < kPageSize; i += 8) {
    uint64_t word = rng();
    std::memcpy(out.data() + i, &word, 8);
  }
  return out;
}
inline Bytes text_page(uint64_t seed) {
  std::string text;
  while (text.size() < kPageSize) text += "line " + std::to_string(seed++) + " of a page that compresses\n";
  Bytes out(kPageSize);
  std::memcpy(out.data(), text.data(), kPageSize);
  return out;
}
inline Bytes zero_page() { return Bytes(kPageSize); }

/// What an image says of one page.
struct Page {
  enum Kind { kData, kZero, kParent } kind = kData;
  Bytes data;  ///< kData
};
/// By address.
using Pages = std::map<uint64_t, Page>;
/// What a reader should find: content by address; an absent page is not there.
using Memory = std::map<uint64_t, Bytes>;

inline Memory resolve(const Memory& parent, const Pages& pages) {
  Memory out;
  for (const auto& [address, page] : pages) {
    if (page.kind == Page::kData) out[address] = page.data;
    if (page.kind == Page::kZero) out[address] = zero_page();
    if (page.kind == Page::kParent && parent.count(address) != 0) out[address] = parent.at(address);
  }
  return out;
}

/// Gives the pages to `add` block by block; `keep` chooses the pages of a block that this call is about.
template <class Add>
Result<void> for_blocks(const Pages& pages, uint16_t keep, Add add) {
  for (auto it = pages.begin(); it != pages.end();) {
    Block block;
    block.address = it->first / kBlockSize * kBlockSize;
    Bytes data;
    for (; it != pages.end() && it->first < block.address + kBlockSize; ++it) {
      auto bit = static_cast<uint16_t>(1u << ((it->first - block.address) / kPageSize));
      if ((bit & keep) == 0) continue;
      if (it->second.kind == Page::kZero) block.zero_mask |= bit;
      if (it->second.kind == Page::kParent) block.parent_mask |= bit;
      if (it->second.kind != Page::kData) continue;
      block.data_mask |= bit;
      data.insert(data.end(), it->second.data.begin(), it->second.data.end());
    }
    block.data = data;
    CKPT_TRY(add(block));
  }
  return {};
}
inline Result<void> add_pages(ImageWriter& writer, const Pages& pages, uint16_t keep = 0xffff) {
  return for_blocks(pages, keep, [&](const Block& block) { return writer.add_block(block); });
}

inline Manifest small_manifest() {
  Manifest manifest;
  manifest.kind = "dump";
  ProcessImage& process = manifest.tree.processes.emplace_back();
  process.pid = 4711;
  process.space = 0;
  process.threads.resize(1);
  process.threads[0].tid = 4711;
  process.threads[0].comm = "target";
  process.arguments = {"target", "--flag"};
  return manifest;
}

inline Result<Manifest> write_image(const fs::path& dir, const Pages& pages, const fs::path& parent = {}) {
  ImageWriter::Options options;
  options.parent = parent;
  CKPT_TRY_ASSIGN(auto writer, ImageWriter::create(dir, options));
  CKPT_TRY(add_pages(*writer, pages));
  Manifest manifest = small_manifest();
  CKPT_TRY(writer->commit(manifest));
  return manifest;
}

/// `bytes`: as `read_block` gives them.
inline void add_to(Memory& out, const ImageReader::ResolvedBlock& block, ByteSpan bytes) {
  for (unsigned page = 0; page < kBlockPages; ++page) {
    const uint64_t address = block.address + page * kPageSize;
    if ((block.zero_mask >> page & 1) != 0) out[address] = zero_page();
    if ((block.data_mask >> page & 1) == 0) continue;
    REQUIRE(bytes.size() >= kPageSize);
    out[address] = Bytes(bytes.begin(), bytes.begin() + kPageSize);
    bytes = bytes.subspan(kPageSize);
  }
  CHECK(bytes.empty());
}

inline Result<Memory> read_memory(const ImageReader& reader) {
  Memory out;
  Bytes data(kBlockSize);
  for (size_t i = 0; i < reader.blocks().size(); ++i) {
    CKPT_TRY_ASSIGN(size_t size, reader.read_block(i, data));
    add_to(out, reader.blocks()[i], ByteSpan(data).first(size));
  }
  return out;
}

inline std::string slurp(const fs::path& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  REQUIRE(file != nullptr);
  std::string out(fs::file_size(path), '\0');
  REQUIRE(std::fread(out.data(), 1, out.size(), file) == out.size());
  std::fclose(file);
  return out;
}
inline void spit(const fs::path& path, std::string_view data) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  REQUIRE(file != nullptr);
  REQUIRE(std::fwrite(data.data(), 1, data.size(), file) == data.size());
  std::fclose(file);
}

}  // namespace ckpt::store::test
