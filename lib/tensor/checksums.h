// The CRCs that a source's records come with, compared with what a conversion reads anyway: a writer that makes a new
// CRC for the bytes that it copies would otherwise give wrong bytes a right one.
#pragma once

#include <condition_variable>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/tensor/read.h"

namespace ckpt::tensor {

/// Thread-safe. Records are named by their index in Catalog::checksums.
class ChecksumLedger {
 public:
  /// Both must outlive it.
  ChecksumLedger(const Catalog& catalog, FileCache& files) : catalog_(catalog), files_(files) {}
  /// Nothing is to be compared: the rest need not be called.
  bool empty() const { return catalog_.checksums.empty(); }

  /// `run` was read for the tensor `key`, and its bytes have the CRC `crc`. Returns the records that it lies in.
  std::vector<uint32_t> note_run(const FileRange& run, uint32_t crc, const std::string& key);
  /// Parts of the tensor were read in another order. Returns its records.
  std::vector<uint32_t> note_tensor(const Tensor& tensor);
  /// Compares these records, each once; what of them nobody has read is read now. What differs is a finding.
  Result<void> settle(const std::set<uint32_t>& records, const Cancel& cancel);

  /// kCorrupt: the first finding that is damage, the others as causes.
  Result<void> check();
  /// After the last `settle`. Damage, and as a warning how many CRCs were not computed when the source was written.
  std::vector<Finding> take_findings();

 private:
  struct Run {
    uint64_t offset, length;
    uint32_t crc;
  };
  struct Entry {
    enum class State : uint8_t { kOpen, kBusy, kDone } state = State::kOpen;
    std::string key;  ///< of a tensor in it
    std::vector<Run> runs;
  };
  uint32_t first_at(const FileRange& range) const;
  Entry& entry(uint32_t record, const std::string& key);
  Result<uint32_t> crc_of(const Checksum& record, std::vector<Run> runs, const Cancel& cancel);
  Result<uint32_t> read_on(uint32_t crc, const FileRange& range, const Cancel& cancel);
  void conclude(uint32_t record, uint32_t crc);

  const Catalog& catalog_;
  FileCache& files_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<uint32_t, Entry> entries_;
  std::vector<Finding> findings_;
  uint64_t not_computed_ = 0;
};

/// The warning about records whose CRC is 0 and should not be.
Finding not_computed(uint64_t records);

}  // namespace ckpt::tensor
