#include "lib/store/chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

namespace ckpt::store {

namespace fs = std::filesystem;

namespace {

/// The page table of a chain while it is built, from the oldest image on.
struct Resolved {
  std::vector<ImageReader::ResolvedBlock> blocks;
  std::vector<uint32_t> first_source = {0};
  std::vector<Source> sources;
};

/// `older` seen through the page map of a younger image: only the pages that it leaves to its parent show through.
Resolved resolve(const Resolved& older, const std::vector<PagemapRecord>& records, uint16_t image) {
  Resolved out;
  out.blocks.reserve(records.size());
  out.first_source.reserve(records.size() + 1);
  out.sources.reserve(records.size());
  size_t old = 0;
  for (size_t i = 0; i < records.size();) {
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
  auto parent = load_image(path);
  if (!parent) {
    return std::move(parent).error().with_cause(child.dir.string() + " has it as its parent and cannot be read without it");
  }
  if (parent->manifest.id != child.manifest.parent_id) {
    return fail(Code::kAnswerNo, path.lexically_normal().string(),
                fmt::format("is not the parent that {} was made from: its id is {}, not {}", child.dir.string(),
                            parent->manifest.id, child.manifest.parent_id));
  }
  return parent;
}

/// The chunks of ancestors that image `at` refers to lie inside their files.
Result<void> check_references(const std::deque<LoadedImage>& images, size_t at) {
  std::map<uint16_t, std::vector<uint64_t>> sizes;
  const LoadedImage& image = images[at];
  if (image.manifest.parent_id.empty()) return {};  // the page map's parser has let none pass
  for (size_t i = 0; i < image.records.size(); ++i) {
    const PagemapRecord& r = image.records[i];
    if (r.ancestor == 0) continue;
    auto refused = [&](const char* what) {
      return fail(Code::kAnswerNo, image.name_of(kPagemapName), fmt::format("record {}, a chunk of ancestor {}: {}", i, r.ancestor, what));
    };
    if (at + r.ancestor >= images.size()) return refused("the chain is not that long");
    auto [known, first] = sizes.try_emplace(r.ancestor);
    if (first) known->second = images[at + r.ancestor].pages_sizes();
    if (const char* what = check_place(r, known->second)) return refused(what);
  }
  return {};
}

}  // namespace

std::optional<size_t> Chain::find(uint64_t address) const {
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

Result<Chain> begin_chain(const fs::path& dir) {
  Chain chain;
  CKPT_TRY_ASSIGN(LoadedImage first, load_description(dir));
  chain.images.push_back(std::move(first));
  return chain;
}

Result<Chain> open_chain(const fs::path& dir) {
  CKPT_TRY_ASSIGN(Chain chain, begin_chain(dir));
  CKPT_TRY(load_chain(chain));
  return chain;
}

Result<void> load_chain(Chain& chain) {
  CKPT_TRY(load_records(chain.images.front()));
  const fs::path dir = chain.images.front().dir;
  std::set<std::string> seen = {chain.images.back().manifest.id};
  while (!chain.images.back().manifest.parent_id.empty()) {
    const LoadedImage& child = chain.images.back();
    if (!seen.insert(child.manifest.parent_id).second) {
      return fail(Code::kAnswerNo, child.dir.string(), "is its own ancestor: its chain of parents is a circle");
    }
    if (chain.images.size() == kMaxChain) return fail(Code::kAnswerNo, dir.string(), fmt::format("has more than {} parents", kMaxChain - 1));
    CKPT_TRY_ASSIGN(LoadedImage parent, load_parent(child));
    chain.images.push_back(std::move(parent));
  }
  for (size_t i = 0; i < chain.images.size(); ++i) CKPT_TRY(check_references(chain.images, i));
  Resolved resolved;
  for (size_t i = chain.images.size(); i-- > 0;) {
    resolved = resolve(resolved, chain.images[i].records, static_cast<uint16_t>(i));
    if (resolved.sources.size() > std::numeric_limits<uint32_t>::max() / 2) return fail(Code::kAnswerNo, dir.string(), "has too many pieces");
  }
  chain.blocks = std::move(resolved.blocks);
  chain.first_source = std::move(resolved.first_source);
  chain.sources = std::move(resolved.sources);
  return {};
}

}  // namespace ckpt::store
