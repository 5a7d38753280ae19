#include "formats/finish.h"

#include <algorithm>
#include <cstring>

namespace ckpt::formats {

void DamageLog::add(std::string key, std::string file, std::optional<uint64_t> offset, std::string message) {
  if (findings_.size() >= kMax) {
    ++more_;
    return;
  }
  findings_.push_back({std::move(key), std::move(file), offset, std::move(message), false});
}

void DamageLog::add(std::string key, std::string file, std::optional<uint64_t> offset, const Error& error) {
  Error bare = error;
  if (bare.subject == file) bare.subject.clear();
  add(std::move(key), std::move(file), offset, bare.text());
}

void DamageLog::append(const DamageLog& other) {
  for (const tensor::Finding& f : other.findings_) add(f.key, f.file, f.offset, f.message);
  more_ += other.more_;
}

namespace {

/// The eight bytes of a key behind what all keys begin with, as a number that compares like them.
uint64_t key_head(std::string_view key, size_t prefix) {
  uint64_t out = 0;
  key.remove_prefix(std::min(prefix, key.size()));
  std::memcpy(&out, key.data(), std::min<size_t>(key.size(), sizeof out));
  return __builtin_bswap64(out);
}

/// Entries are large, and mostly in order: small records are sorted, and each entry is moved once.
template <class Entry>
void sort_by_key(std::vector<Entry>& entries) {
  auto by_key = [](const Entry& a, const Entry& b) { return a.key < b.key; };
  if (std::is_sorted(entries.begin(), entries.end(), by_key)) return;
  size_t prefix = entries[0].key.size();
  for (const Entry& entry : entries) {
    auto differ =
        std::mismatch(entry.key.begin(), entry.key.begin() + static_cast<ptrdiff_t>(std::min(prefix, entry.key.size())),
                      entries[0].key.begin());
    prefix = static_cast<size_t>(differ.first - entry.key.begin());
  }
  std::vector<std::pair<uint64_t, uint32_t>> order;
  order.reserve(entries.size());
  for (const Entry& entry : entries)
    order.emplace_back(key_head(entry.key, prefix), static_cast<uint32_t>(order.size()));
  std::sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : entries[a.second].key < entries[b.second].key;
  });
  std::vector<Entry> sorted;
  sorted.reserve(entries.size());
  for (const auto& [head, i] : order) sorted.push_back(std::move(entries[i]));
  entries = std::move(sorted);
}

template <class Entry>
void sort_and_refuse_twins(std::vector<Entry>& entries, const char* what, DamageLog& damage) {
  sort_by_key(entries);
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].key == entries[i - 1].key) {
      damage.add(entries[i].key, "", std::nullopt, std::string("two ") + what + " have this name");
    }
  }
}

}  // namespace

Result<tensor::Catalog> finish_catalog(tensor::Catalog catalog, DamageLog damage, const ReadOptions& options) {
  sort_and_refuse_twins(catalog.tensors, "tensors", damage);
  sort_and_refuse_twins(catalog.objects, "objects", damage);
  std::sort(catalog.checksums.begin(), catalog.checksums.end(),
            [](const tensor::Checksum& a, const tensor::Checksum& b) {
              return std::pair(a.where.file, a.where.offset) < std::pair(b.where.file, b.where.offset);
            });
  // Several shards may lie in one record.
  auto same = [](const tensor::Checksum& a, const tensor::Checksum& b) {
    return a.where.file == b.where.file && a.where.offset == b.where.offset;
  };
  catalog.checksums.erase(std::unique(catalog.checksums.begin(), catalog.checksums.end(), same),
                          catalog.checksums.end());
  for (const tensor::Tensor& t : catalog.tensors) {
    for (const std::string& text : tensor::check_shards(t)) {
      damage.add(t.key, "", std::nullopt, text.substr(std::min(text.size(), t.key.size() + 2)));
    }
  }
  if (damage.more_ > 0) {
    damage.findings_.push_back({"", "", std::nullopt, "and " + std::to_string(damage.more_) + " more findings", false});
  }
  if (!damage.empty() && !options.tolerate_damage) return tensor::damage_error(catalog, damage.findings_);
  catalog.damage = std::move(damage.findings_);
  return catalog;
}

}  // namespace ckpt::formats
