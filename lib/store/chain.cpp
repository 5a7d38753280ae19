#include "lib/store/chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

namespace ckpt::store {

namespace fs = std::filesystem;

namespace {

/// `older` seen through the page map of a younger image: only the pages that it leaves to its parent show through.
PageTable resolve(const PageTable& older, std::span<const PagemapRecord> records, uint16_t image) {
  PageTable out;
  out.blocks.reserve(records.size());
  out.first_source.reserve(records.size() + 1);
  out.sources.reserve(records.size());
  size_t old = 0;
  for (size_t i = 0; i < records.size();) {
    if (const PagemapRecord& r = records[i];
        older.blocks.empty() && (i + 1 == records.size() || records[i + 1].address != r.address)) {
      ++i;  // nearly every record of an image without a parent: alone in its block, with nothing below it
      if ((r.data_mask | r.zero_mask) == 0) continue;
      if (r.data_mask != 0) out.sources.push_back({static_cast<uint32_t>(i - 1), image, r.data_mask});
      out.blocks.push_back({r.address, r.data_mask, r.zero_mask});
      out.first_source.push_back(static_cast<uint32_t>(out.sources.size()));
      continue;
    }
    ImageReader::ResolvedBlock block;
    block.address = records[i].address;
    uint16_t parent = 0xffff;  // pages on which the records so far have not decided
    for (; i < records.size() && records[i].address == block.address; ++i) {
      const PagemapRecord& r = records[i];
      const uint16_t data = r.data_mask & parent;
      block.data_mask |= data;
      block.zero_mask |= r.zero_mask & parent;
      parent &= r.parent_mask;
      if (data != 0) out.sources.push_back({static_cast<uint32_t>(i), image, data});
    }
    while (old < older.blocks.size() && older.blocks[old].address < block.address) ++old;
    if (parent != 0 && old < older.blocks.size() && older.blocks[old].address == block.address) {
      block.data_mask |= older.blocks[old].data_mask & parent;
      block.zero_mask |= older.blocks[old].zero_mask & parent;
      for (uint32_t s = older.first_source[old]; s < older.first_source[old + 1]; ++s) {
        Source source = older.sources[s];
        source.mask &= parent;
        if (source.mask != 0) out.sources.push_back(source);
      }
    }
    if ((block.data_mask | block.zero_mask) == 0) continue;
    out.blocks.push_back(block);
    out.first_source.push_back(static_cast<uint32_t>(out.sources.size()));
  }
  return out;
}

Result<LoadedImage> load_parent(const LoadedImage& child) {
  fs::path path = child.dir / child.manifest.parent_path;
  auto parent = load_description(path, child.trust);
  if (!parent) {
    return std::move(parent).error().with_cause(child.dir.string() +
                                                " has it as its parent and cannot be read without it");
  }
  if (parent->manifest.id != child.manifest.parent_id) {
    return fail(Code::kCorrupt, path.lexically_normal().string(),
                fmt::format("is not the parent that {} was made from: its id is {}, not {}", child.dir.string(),
                            parent->manifest.id, child.manifest.parent_id));
  }
  if (!child.manifest.parent_sha256.empty() && parent->manifest_sha256 != child.manifest.parent_sha256) {
    return fail(
        Code::kCorrupt, path.lexically_normal().string(),
        fmt::format("is not as it was when {} was made from it: its manifest has another SHA-256", child.dir.string()));
  }
  return parent;
}

/// The chunks of ancestors that image `at` refers to lie inside their files.
Result<void> check_references(const std::deque<LoadedImage>& images, size_t at,
                              std::span<const PagemapRecord> records) {
  std::map<uint16_t, std::vector<uint64_t>> sizes;
  const LoadedImage& image = images[at];
  if (image.manifest.parent_id.empty()) return {};  // the page map's parser has let none pass
  for (size_t i = 0; i < records.size(); ++i) {
    const PagemapRecord& r = records[i];
    if (r.ancestor == 0) continue;
    auto refused = [&](const char* what) {
      return fail(Code::kCorrupt, image.name_of(kPagemapName),
                  fmt::format("record {}, a chunk of ancestor {}: {}", i, r.ancestor, what));
    };
    if (at + r.ancestor >= images.size()) return refused("the chain is not that long");
    auto [known, first] = sizes.try_emplace(r.ancestor);
    if (first) known->second = images[at + r.ancestor].pages_sizes();
    if (const char* what = check_place(r, known->second)) return refused(what);
  }
  return {};
}

}  // namespace

std::optional<size_t> PageTable::find(uint64_t address) const {
  auto it = std::lower_bound(blocks.begin(), blocks.end(), address,
                             [](const ImageReader::ResolvedBlock& b, uint64_t a) { return b.address < a; });
  if (it == blocks.end() || it->address != address) return std::nullopt;
  return static_cast<size_t>(it - blocks.begin());
}

uint64_t Chain::stored_bytes() const {
  uint64_t sum = 0;
  for (const LoadedImage& image : images) sum += image.stored_bytes();
  return sum;
}

Result<Chain> begin_chain(const fs::path& dir, Trust trust) {
  Chain chain;
  CKPT_TRY_ASSIGN(LoadedImage first, load_description(dir, trust));
  chain.images.push_back(std::move(first));
  return chain;
}

Result<Chain> open_chain(const fs::path& dir) {
  CKPT_TRY_ASSIGN(Chain chain, begin_chain(dir));
  CKPT_TRY(add_parents(chain));
  CKPT_TRY(load_pages(chain));
  return chain;
}

Result<void> add_parents(Chain& chain) {
  const fs::path dir = chain.images.front().dir;
  std::set<std::string> seen = {chain.images.back().manifest.id};
  while (!chain.images.back().manifest.parent_id.empty()) {
    const LoadedImage& child = chain.images.back();
    if (!seen.insert(child.manifest.parent_id).second) {
      return fail(Code::kCorrupt, child.dir.string(), "is its own ancestor: its chain of parents is a circle");
    }
    if (chain.images.size() == kMaxChain)
      return fail(Code::kCorrupt, dir.string(), fmt::format("has more than {} parents", kMaxChain - 1));
    CKPT_TRY_ASSIGN(LoadedImage parent, load_parent(child));
    chain.images.push_back(std::move(parent));
  }
  return {};
}

Result<PageTable> resolve_pages(const std::deque<LoadedImage>& images,
                                std::vector<std::span<const PagemapRecord>> records) {
  PageTable out;
  for (size_t i = images.size(); i-- > 0;) {
    CKPT_TRY(check_references(images, i, records[i]));
    out = resolve(out, records[i], static_cast<uint16_t>(i));
    if (out.sources.size() > std::numeric_limits<uint32_t>::max() / 2)
      return fail(Code::kCorrupt, images.front().dir.string(), "has too many pieces");
  }
  out.records = std::move(records);
  return out;
}

Result<void> load_pages(Chain& chain) {
  std::vector<std::span<const PagemapRecord>> records;
  for (LoadedImage& image : chain.images) {
    CKPT_TRY(load_records(image));
    records.emplace_back(image.records);
  }
  CKPT_TRY_ASSIGN(chain.pages, resolve_pages(chain.images, std::move(records)));
  return {};
}

}  // namespace ckpt::store
