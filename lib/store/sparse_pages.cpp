#include "lib/store/sparse_pages.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/base/io.h"

namespace ckpt::store {

namespace {

constexpr size_t kHeader = 32, kRecord = sizeof(PagemapRecord);

}  // namespace

size_t SparsePages::Map::records() const { return size < kHeader ? 0 : (size - kHeader) / kRecord; }

uint64_t SparsePages::Map::address(size_t record) const {
  uint64_t out;
  std::memcpy(&out, bytes.get() + kHeader + record * kRecord, sizeof out);
  return out;
}

size_t SparsePages::Map::find(uint64_t address) const {
  size_t first = 0;
  for (size_t count = records(); count > 0;) {
    const size_t half = count / 2;
    if (this->address(first + half) < address) first += half + 1, count -= half + 1;
    else count = half;
  }
  return first;
}

ByteSpan SparsePages::Map::span(size_t first, size_t last) const {
  return {bytes.get() + kHeader + first * kRecord, (last - first) * kRecord};
}

std::optional<UncheckedPagemap> read_pagemap_ahead(const std::filesystem::path& dir) {
  constexpr uint64_t kMost = uint64_t{64} << 20;
  const std::string name = (dir / kPagemapName).string();
  auto folder = io::open_file(dir, O_RDONLY | O_DIRECTORY);
  if (!folder) return std::nullopt;
  auto fd = io::open_regular(folder->get(), kPagemapName);
  if (!fd) return std::nullopt;
  auto st = io::stat_fd(fd->get(), name);
  if (!st || static_cast<uint64_t>(st->st_size) > kMost) return std::nullopt;
  UncheckedPagemap out;
  out.size = static_cast<size_t>(st->st_size);
  out.bytes = std::make_unique_for_overwrite<std::byte[]>(out.size);
  auto digest = read_hashed(fd->get(), {out.bytes.get(), out.size}, name);
  if (!digest) return std::nullopt;
  out.digest = std::move(*digest);
  return out;
}

Result<SparsePages> SparsePages::read(const std::deque<LoadedImage>& images, std::optional<UncheckedPagemap> newest) {
  SparsePages out(images);
  for (const LoadedImage& image : images) {
    const StoredFile& stored = image.stored(kPagemapName);
    Map& map = out.maps_.emplace_back();
    map.size = stored.size;
    if (&image == &images.front() && newest && newest->size == stored.size && newest->digest.matches(stored)) {
      map.bytes = std::move(newest->bytes);
      continue;
    }
    map.bytes = std::make_unique_for_overwrite<std::byte[]>(map.size);
    CKPT_TRY(read_checked(image, kPagemapName, {map.bytes.get(), map.size}));
  }
  return out;
}

bool SparsePages::may_have_data(uint64_t first, uint64_t last) const {
  return std::any_of(maps_.begin(), maps_.end(), [&](const Map& map) {
    for (size_t i = map.find(first & ~(kBlockSize - 1)); i < map.records() && map.address(i) < last; ++i) {
      PagemapRecord record;
      std::memcpy(static_cast<void*>(&record), map.span(i, i + 1).data(), sizeof record);
      if ((record.data_mask | record.parent_mask) != 0) return true;
    }
    return false;
  });
}

Result<SparsePages::PageMapPart> SparsePages::part(std::span<const AddressRange> ranges) const {
  PageMapPart out;
  std::vector<std::span<const PagemapRecord>> spans;
  for (size_t i = 0; i < maps_.size(); ++i) {
    const Map& map = maps_[i];
    std::vector<std::pair<size_t, size_t>> wanted;
    size_t count = 0;
    for (const AddressRange& range : ranges) {
      const size_t first =
          std::max(map.find(range.first & ~(kBlockSize - 1)), wanted.empty() ? 0 : wanted.back().second);
      const size_t last = std::max(first, map.find(range.last));
      if (first == last) continue;
      wanted.emplace_back(first, last);
      count += last - first;
    }
    // As if the file held nothing else.
    const LoadedImage& image = (*images_)[i];
    PagemapParser parser(image.pages_sizes(), !image.manifest.parent_id.empty());
    Result<void> parsed = parser.feed(as_bytes(pagemap_header(count)));
    for (size_t at = 0; parsed && at < wanted.size(); ++at)
      parsed = parser.feed(map.span(wanted[at].first, wanted[at].second));
    CKPT_TRY_ASSIGN(std::vector<PagemapRecord> records, take_records(image, std::move(parsed), parser));
    out.records.push_back(std::move(records));
    spans.emplace_back(out.records.back());
  }
  CKPT_TRY_ASSIGN(out.table, resolve_pages(*images_, std::move(spans)));
  return out;
}

Result<std::vector<PagemapRecord>> SparsePages::records_of(size_t image) const {
  const LoadedImage& one = (*images_)[image];
  PagemapParser parser(one.pages_sizes(), !one.manifest.parent_id.empty());
  parser.expect(maps_[image].size);
  return take_records(one, parser.feed({maps_[image].bytes.get(), maps_[image].size}), parser);
}

}  // namespace ckpt::store
