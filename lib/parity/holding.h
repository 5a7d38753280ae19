// What a rank of a job has of a protection, and what all of them have together.
#pragma once

#include <map>
#include <optional>
#include <set>

#include "lib/parity/group.h"

namespace ckpt::parity {

/// The part that one rank of the job takes.
class Holding {
 public:
  /// All ranks call it: they agree on one epoch, on who takes whose part, and on one error. kNotFound: nobody has
  /// parity. kUsage: two folders are those of one rank.
  static Result<Holding> gather(Rank& rank);

  const std::vector<SetRecord>& sets() const { return sets_; }
  uint64_t epoch() const { return epoch_; }
  uint32_t world() const { return world_; }
  /// Whose part it takes; nothing: a rank too many.
  bool has_part() const { return part_.has_value(); }
  const SetRecord& set() const { return sets_[part_->first]; }
  size_t set_index() const { return part_->first; }
  uint32_t member() const { return part_->second; }
  const ErasureCode& code() const { return *code_; }

  State data() const { return data_; }
  State parity() const { return parity_; }
  const std::string& finding() const { return finding_; }
  /// Only these are read from; what is changed but has every byte is one of them.
  bool data_is_good() const { return data_ == State::kWhole || data_ == State::kChanged; }
  bool parity_is_good() const { return parity_ == State::kWhole; }
  /// Of data and parity that are good.
  const FileTable& table() const { return table_; }
  /// A file was written since, be it with the same bytes: only reading tells.
  bool suspect() const { return suspect_; }
  const BlockSums& data_sums() const { return data_sums_; }
  /// Users other than root who own parity files of the set, and so can have made up what comes back.
  const std::set<uint32_t>& owners() const { return owners_; }
  /// Of those files.
  const std::set<uint32_t>& groups() const { return groups_; }

  /// A block of the member's symbol in a row. Where the error tells a loss (`tells_loss`) that part is not good any
  /// more from here on.
  Result<void> read(uint32_t row, uint64_t block, MutableByteSpan out);
  /// Every block of what is good; what is damaged is noted, and no error.
  Result<void> read_all(ProgressSink& progress, const Cancel& cancel);

  /// How all members are, by set; the same on all ranks.
  Result<std::vector<SetHealth>> compare(Transport& transport) const;
  /// The rank of the transport that takes the part of each rank; absent: nobody.
  const std::map<uint32_t, uint32_t>& takers() const { return takers_; }
  /// Folders for which the protection has no part.
  const std::vector<std::string>& strangers() const { return strangers_; }

 private:
  Result<void> open_files(std::map<uint64_t, ParityFile>& files);
  Result<void> choose(Rank& rank, std::map<uint64_t, ParityFile>& files, const std::vector<std::string>& said);
  /// The sets of the epoch, and who has which part of them. `records`: of each set, by its first rank.
  Result<void> take_records(const std::vector<std::string>& said, std::map<uint32_t, std::string>& records);
  void hand_out_parts(const std::vector<std::string>& said);
  void find_own_part(uint32_t own);
  Result<void> take_file(const Rank& rank, std::map<uint64_t, ParityFile>& files);
  Result<void> look_at_data(Rank& rank);
  Result<void> look_at_unprotected(Rank& rank);
  void note(State& state, State what, const std::string& finding);

  std::filesystem::path folder_;
  uint64_t epoch_ = 0;
  uint32_t world_ = 0;
  std::vector<SetRecord> sets_;
  std::map<uint32_t, uint32_t> takers_;
  std::vector<std::string> strangers_;
  std::set<uint32_t> owners_, groups_;
  bool later_version_ = false;  ///< a parity file that this version does not know
  std::optional<std::pair<size_t, uint32_t>> part_;
  std::optional<ErasureCode> code_;
  std::optional<ParityFile> file_;
  std::optional<RunReader> run_;
  FileTable table_;
  BlockSums data_sums_;
  bool suspect_ = false;
  State data_ = State::kMissing, parity_ = State::kMissing;
  std::string finding_;
};

}  // namespace ckpt::parity
