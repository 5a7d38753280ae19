#include "lib/tensor/checksums.h"

#include <algorithm>

#include "lib/base/digest.h"
#include "lib/base/io.h"

namespace ckpt::tensor {

namespace {
constexpr uint64_t kBlock = 256 << 10;
constexpr size_t kMaxMismatches = 1000;
}  // namespace

/// The first record that ends behind the range's beginning.
uint32_t ChecksumLedger::first_at(const FileRange& range) const {
  const auto& all = catalog_.checksums;
  auto at = std::upper_bound(all.begin(), all.end(), range, [](const FileRange& r, const Checksum& sum) {
    return std::pair(r.file, r.offset) < std::pair(sum.where.file, sum.where.offset);
  });
  if (at != all.begin()) {
    const FileRange& before = std::prev(at)->where;
    if (before.file == range.file && before.offset + before.length > range.offset) --at;
  }
  return static_cast<uint32_t>(at - all.begin());
}

ChecksumLedger::Entry& ChecksumLedger::entry(uint32_t record, const std::string& key) {
  Entry& out = entries_[record];
  if (out.key.empty()) out.key = key;
  return out;
}

std::vector<uint32_t> ChecksumLedger::note_run(const FileRange& run, uint32_t crc, const std::string& key) {
  std::vector<uint32_t> out;
  const auto& all = catalog_.checksums;
  for (uint32_t i = first_at(run); i < all.size(); ++i) {
    const FileRange& where = all[i].where;
    if (where.file != run.file || where.offset >= run.offset + run.length) break;
    out.push_back(i);
    std::lock_guard lock(mutex_);
    Entry& found = entry(i, key);
    const bool inside = run.offset >= where.offset && run.offset + run.length <= where.offset + where.length;
    if (inside && found.state == Entry::State::kOpen) found.runs.push_back({run.offset, run.length, crc});
  }
  return out;
}

std::vector<uint32_t> ChecksumLedger::note_tensor(const Tensor& tensor) {
  std::vector<uint32_t> out;
  const auto& all = catalog_.checksums;
  for (const Shard& shard : tensor.shards) {
    if (shard.encoding == Encoding::kFill || shard.where.length == 0) continue;
    for (uint32_t i = first_at(shard.where); i < all.size(); ++i) {
      const FileRange& where = all[i].where;
      if (where.file != shard.where.file || where.offset >= shard.where.offset + shard.where.length) break;
      out.push_back(i);
      std::lock_guard lock(mutex_);
      entry(i, tensor.key);
    }
  }
  return out;
}

Result<void> ChecksumLedger::settle(const std::set<uint32_t>& records, const Cancel& cancel) {
  for (uint32_t record : records) {
    std::vector<Run> runs;
    {
      std::unique_lock lock(mutex_);
      Entry& found = entries_[record];
      changed_.wait(lock, [&] { return found.state != Entry::State::kBusy; });
      if (found.state == Entry::State::kDone) continue;
      found.state = Entry::State::kBusy;
      runs.swap(found.runs);
    }
    auto crc = crc_of(catalog_.checksums[record], std::move(runs), cancel);
    {
      std::lock_guard lock(mutex_);
      entries_[record].state = crc ? Entry::State::kDone : Entry::State::kOpen;
      if (crc) conclude(record, *crc);
    }
    changed_.notify_all();
    if (!crc) return std::move(crc).error();
  }
  return {};
}

void ChecksumLedger::conclude(uint32_t record, uint32_t crc) {
  const Checksum& sum = catalog_.checksums[record];
  if (crc == sum.crc) return;
  if (sum.crc == 0) {
    ++not_computed_;
  } else if (findings_.size() < kMaxMismatches) {
    findings_.push_back({entries_[record].key, catalog_.files[sum.where.file].path, sum.where.offset, sum.differs()});
  }
}

/// Of the whole record: out of those of the runs, and what lies between them.
Result<uint32_t> ChecksumLedger::crc_of(const Checksum& record, std::vector<Run> runs, const Cancel& cancel) {
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.offset < b.offset; });
  uint32_t crc = 0;
  uint64_t at = record.where.offset;
  const uint64_t end = at + record.where.length;
  for (const Run& run : runs) {
    if (run.offset < at) continue;  // read twice, for tied tensors
    CKPT_TRY_ASSIGN(crc, read_on(crc, {record.where.file, at, run.offset - at}, cancel));
    crc = crc32_combine(crc, run.crc, run.length);
    at = run.offset + run.length;
  }
  return read_on(crc, {record.where.file, at, end - at}, cancel);
}

Result<uint32_t> ChecksumLedger::read_on(uint32_t crc, const FileRange& range, const Cancel& cancel) {
  if (range.length == 0) return crc;
  CKPT_TRY_ASSIGN(auto file, files_.open(range.file));
  std::vector<std::byte> block(std::min(kBlock, range.length));
  for (uint64_t done = 0; done < range.length;) {
    CKPT_TRY(cancel.check());
    MutableByteSpan part(block.data(), std::min<uint64_t>(block.size(), range.length - done));
    CKPT_TRY(io::pread_exact(file->get(), part, range.offset + done, catalog_.files[range.file].path));
    crc = crc32(crc, part);
    done += part.size();
  }
  return crc;
}

Result<void> ChecksumLedger::check() {
  std::lock_guard lock(mutex_);
  if (findings_.empty()) return {};
  return fail(damage_error(catalog_, findings_));
}

std::vector<Finding> ChecksumLedger::take_findings() {
  if (not_computed_ > 0) findings_.push_back(not_computed(not_computed_));
  return std::move(findings_);
}

Finding not_computed(uint64_t records) {
  return {"", "", std::nullopt,
          std::to_string(records) +
              " CRCs were not computed when it was written: nothing says whether their bytes are right",
          true};
}

}  // namespace ckpt::tensor
