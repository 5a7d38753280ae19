#include "formats/finish.h"

#include <algorithm>

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

template <class Entry>
void sort_and_refuse_twins(std::vector<Entry>& entries, const char* what, DamageLog& damage) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].key == entries[i - 1].key) {
      damage.add(entries[i].key, "", std::nullopt, std::string("two ") + what + " have this name");
    }
  }
}

Error damage_error(const tensor::Catalog& catalog, const std::vector<tensor::Finding>& findings) {
  Error error(Code::kAnswerNo, catalog.root.string(), "damaged: " + findings[0].text());
  constexpr size_t kShown = 8;
  for (size_t i = 1; i < std::min(findings.size(), kShown); ++i) error.causes.push_back(findings[i].text());
  if (findings.size() > kShown) error.causes.push_back("and " + std::to_string(findings.size() - kShown) + " more");
  error.hint = "ckpt verify lists all that is wrong";
  return error;
}

}  // namespace

Result<tensor::Catalog> finish_catalog(tensor::Catalog catalog, DamageLog damage, const ReadOptions& options) {
  sort_and_refuse_twins(catalog.tensors, "tensors", damage);
  sort_and_refuse_twins(catalog.objects, "objects", damage);
  for (const tensor::Tensor& t : catalog.tensors) {
    for (const std::string& text : tensor::check_shards(t)) {
      damage.add(t.key, "", std::nullopt, text.substr(std::min(text.size(), t.key.size() + 2)));
    }
  }
  if (damage.more_ > 0) {
    damage.findings_.push_back({"", "", std::nullopt, "and " + std::to_string(damage.more_) + " more findings", false});
  }
  if (!damage.empty() && !options.tolerate_damage) return damage_error(catalog, damage.findings_);
  catalog.damage = std::move(damage.findings_);
  return catalog;
}

}  // namespace ckpt::formats
