#include "lib/memory/lazy/page_places.h"

#include <algorithm>
#include <iterator>

namespace ckpt::restore {

void PagePlaces::put(uint64_t target, const Extent& extent) {
  by_target_.emplace(target, extent);
  by_source_.emplace(extent.source, target);
}

void PagePlaces::add(uint64_t target, uint64_t source, uint64_t size) { put(target, {source, size, false}); }

/// Takes [start, end) out; returns the pieces.
std::vector<PagePlaces::PageExtent> PagePlaces::cut(uint64_t start, uint64_t end) {
  std::vector<PageExtent> out;
  auto it = by_target_.upper_bound(start);
  if (it != by_target_.begin()) --it;
  while (it != by_target_.end() && it->first < end) {
    const uint64_t at = it->first, past = at + it->second.size;
    if (past <= start) {
      ++it;
      continue;
    }
    const Extent extent = it->second;
    by_source_.erase(extent.source);
    it = by_target_.erase(it);
    const uint64_t first = std::max(at, start), last = std::min(past, end);
    if (at < first) put(at, {extent.source, first - at, extent.moved});
    if (last < past) put(last, {extent.source + (last - at), past - last, extent.moved});
    out.push_back({first, extent.source + (first - at), last - first});
  }
  return out;
}

void PagePlaces::remove(uint64_t start, uint64_t end) { (void)cut(start, end); }

void PagePlaces::move(uint64_t from, uint64_t to, uint64_t size) {
  std::vector<PageExtent> moved = cut(from, from + size);
  remove(to, to + size);
  for (const PageExtent& piece : moved) put(piece.target - from + to, {piece.source, piece.size, true});
}

std::optional<uint64_t> PagePlaces::source_of(uint64_t target) const {
  auto it = by_target_.upper_bound(target);
  if (it == by_target_.begin()) return std::nullopt;
  --it;
  if (target - it->first >= it->second.size) return std::nullopt;
  return it->second.source + (target - it->first);
}

std::vector<PagePlaces::PageExtent> PagePlaces::places_of(uint64_t source, uint64_t size) const {
  std::vector<PageExtent> out;
  auto it = by_source_.upper_bound(source);
  if (it != by_source_.begin()) --it;
  for (; it != by_source_.end() && it->first < source + size; ++it) {
    const Extent& extent = by_target_.at(it->second);
    const uint64_t first = std::max(source, it->first), last = std::min(source + size, it->first + extent.size);
    if (first < last) out.push_back({it->second + (first - it->first), first, last - first});
  }
  return out;
}

bool PagePlaces::has_moved(uint64_t start, uint64_t end) const {
  auto it = by_target_.upper_bound(start);
  if (it != by_target_.begin()) --it;
  for (; it != by_target_.end() && it->first < end; ++it) {
    if (it->second.moved && it->first + it->second.size > start) return true;
  }
  return false;
}

}  // namespace ckpt::restore
