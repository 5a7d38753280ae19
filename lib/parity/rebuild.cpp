#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>

#include "lib/base/io.h"
#include "lib/base/staged_dir.h"
#include "lib/parity/holding.h"

namespace ckpt::parity {

namespace fs = std::filesystem;

namespace {

/// All that a user is in, where it is known here.
std::set<uint32_t> groups_of(uint32_t user) {
  std::vector<char> room(size_t{1} << 16);
  passwd entry{}, *found = nullptr;
  if (::getpwuid_r(user, &entry, room.data(), room.size(), &found) != 0 || found == nullptr) return {};
  int count = 64;
  std::vector<gid_t> out(static_cast<size_t>(count));
  while (::getgrouplist(entry.pw_name, entry.pw_gid, out.data(), &count) < 0) out.resize(static_cast<size_t>(count));
  return {out.begin(), out.begin() + count};
}

/// What comes back, staged until all of it is there: the run in a file without a name, the parity in one of its own.
class Restoration final : public Symbols {
 public:
  Restoration(Holding& holding, const fs::path& folder) : holding_(holding), folder_(folder) {}

  /// Beginning anew; nothing of an earlier attempt is left.
  Result<void> begin(bool data, bool parity, bool force) {
    const SetRecord& set = holding_.set();
    data_ = data, parity_ = parity;
    folder_staged_.reset(), file_staged_.reset(), run_.reset();
    if (data) {
      CKPT_TRY_ASSIGN(auto staged, StagedDir::create(folder_, force));
      const fs::path name = staged.path() / ".run";
      CKPT_TRY_ASSIGN(run_, io::open_file(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW));
      if (::unlink(name.c_str()) != 0) return sys_error(name.string(), "cannot be unlinked");
      folder_staged_.emplace(std::move(staged));
      data_sums_.assign(holding_.code().data_chunks() * set.blocks(), 0);
    }
    if (parity) {
      const fs::path path = parity_path(fs::absolute(folder_), set.epoch);
      CKPT_TRY_ASSIGN(auto staged, StagedDir::create(path, true, StagedDir::Kind::kFile));
      CKPT_TRY_ASSIGN(auto writer, ParityWriter::create(staged.path() / path.filename(), set.chunk));
      file_staged_.emplace(std::move(staged)), writer_.emplace(std::move(writer));
      parity_sums_.assign(holding_.code().parity_chunks() * set.blocks(), 0);
    }
    return {};
  }

  Result<void> read(uint32_t row, uint64_t block, MutableByteSpan out) override {
    return holding_.read(row, block, out);
  }

  Result<void> write(uint32_t row, uint64_t block, ByteSpan bytes) override {
    const SetRecord& set = holding_.set();
    const Symbol symbol = holding_.code().symbol(holding_.member(), row);
    const uint64_t number = symbol.index * set.blocks() + block;
    written_ += bytes.size();
    if (symbol.kind == Symbol::Kind::kParity) {
      parity_sums_[number] = crc32c(0, bytes);
      return writer_->write(symbol.index, block * set.block, bytes);
    }
    data_sums_[number] = crc32c(0, bytes);
    const uint64_t at = symbol.index * set.chunk + block * set.block, end = set.members[holding_.member()].bytes;
    if (at >= end) return {};  // padding
    return io::pwrite_all(run_.get(), bytes.first(std::min<uint64_t>(bytes.size(), end - at)), at, folder_.string());
  }

  /// Files of what has come, if it is what was protected.
  Result<void> complete() {
    const SetRecord& set = holding_.set();
    const MemberRecord& me = set.members[holding_.member()];
    FileTable table = holding_.table();
    if (!data_ && !parity_) return {};
    CKPT_TRY_ASSIGN(const auto other, stranger());
    if (data_) {
      if (digest_of(data_sums_) != me.digest)
        return fail(Code::kCorrupt, folder_.string(), "the bytes that came back are not those that were protected");
      CKPT_TRY_ASSIGN(table, read_table(me.bytes));
      if (other) CKPT_TRY(check_harmless(table, *other));
      CKPT_TRY(unpack(run_.get(), folder_.string(), table, folder_staged_->path()));
      run_.reset();
    }
    if (!parity_) return {};
    if (other) CKPT_TRY(writer_->give_to(*other));  // it is worth no more than those that it comes from
    return writer_->finish(set, holding_.member(), data_ ? data_sums_ : holding_.data_sums(), parity_sums_, table);
  }

  Result<void> commit() {
    if (data_) CKPT_TRY(folder_staged_->commit(""));
    if (parity_) CKPT_TRY(file_staged_->commit(file_staged_->destination().filename().string()));
    return {};
  }

  bool data() const { return data_; }
  bool parity() const { return parity_; }
  uint64_t written() const { return written_; }

 private:
  /// The user who can have made up what comes back; root trusts itself, and for others it is no matter.
  Result<std::optional<uint32_t>> stranger() const {
    const std::set<uint32_t>& owners = holding_.owners();
    if (::geteuid() != 0 || owners.empty()) return std::optional<uint32_t>();
    if (owners.size() == 1) return std::optional(*owners.begin());
    return refused(folder_, fmt::format("would come back by parity files of users {}", fmt::join(owners, ", ")));
  }

  /// Root makes what a stranger's parity file says: files such as the stranger could have made, and none that gives
  /// its owner's rights to who runs it.
  Result<void> check_harmless(const FileTable& table, uint32_t stranger) const {
    std::set<uint32_t> groups = groups_of(stranger);
    groups.insert(holding_.groups().begin(), holding_.groups().end());
    for (const FileEntry& entry : table.entries) {
      const std::string by = fmt::format("and would come back by a parity file of user {}", stranger);
      const uint32_t special = entry.type == FileEntry::Type::kFolder ? 04000 : 06000;
      if (entry.uid != stranger) return refused(folder_ / entry.name, fmt::format("is of user {}, {}", entry.uid, by));
      if (groups.count(entry.gid) == 0)
        return refused(folder_ / entry.name, fmt::format("is of group {}, {}", entry.gid, by));
      if ((entry.mode & special) != 0) return refused(folder_ / entry.name, "is set-user-ID or set-group-ID, " + by);
    }
    return {};
  }

  static Error refused(const fs::path& path, const std::string& why) {
    return Error(Code::kPermission, path.string(), why)
        .with_hint("rebuild as that user; or, where the parity files are known to be right, make root their owner");
  }

  Result<FileTable> read_table(uint64_t run_bytes) {
    uint64_t size = 0;
    const MutableByteSpan head = std::as_writable_bytes(std::span(&size, 1));
    CKPT_TRY(io::pread_exact(run_.get(), head, 0, folder_.string()));
    if (size > run_bytes) return fail(Code::kCorrupt, folder_.string(), "the table of files is damaged");
    std::vector<std::byte> bytes(size);
    CKPT_TRY(io::pread_exact(run_.get(), bytes, 0, folder_.string()));
    CKPT_TRY_ASSIGN(FileTable table, FileTable::parse(bytes, folder_.string()));
    if (table.run_bytes() != run_bytes) return fail(Code::kCorrupt, folder_.string(), "the table of files is damaged");
    return table;
  }

  Holding& holding_;
  fs::path folder_;
  bool data_ = false, parity_ = false;
  std::optional<StagedDir> folder_staged_, file_staged_;
  std::optional<ParityWriter> writer_;
  UniqueFd run_;
  BlockSums data_sums_, parity_sums_;
  uint64_t written_ = 0;
};

Health health_of(const Holding& holding, std::vector<SetHealth> sets) {
  Health out;
  out.epoch = holding.epoch(), out.world = holding.world(), out.sets = std::move(sets);
  out.strangers = holding.strangers();
  std::vector<bool> known(out.world);
  for (const SetHealth& set : out.sets) {
    for (const MemberHealth& member : set.members) known[member.rank] = true;
  }
  for (uint32_t rank = 0; rank < out.world; ++rank) {
    if (!known[rank]) out.unknown.push_back(rank);
  }
  return out;
}

bool needs_data(const MemberHealth& member) { return member.data == State::kMissing || member.data == State::kDamaged; }
bool needs_parity(const MemberHealth& member) { return member.parity != State::kWhole; }

bool has_losses(const SetHealth& set) {
  return std::any_of(set.members.begin(), set.members.end(),
                     [](const MemberHealth& member) { return needs_data(member) || needs_parity(member); });
}

/// The chains of one set that end at somebody who is there.
Schedule schedule_for(const SetHealth& set, const ErasureCode& code) {
  std::vector<Loss> losses;
  for (const MemberHealth& member : set.members) losses.push_back({needs_data(member), needs_parity(member)});
  Schedule out = recovery_schedule(code, set.set.nodes(), losses).value_or(Schedule{});
  std::erase_if(out, [&](const Chain& chain) { return set.members[chain.target].folder.empty(); });
  return out;
}

/// One attempt: what is lost by what is known now. Where a member turns out to be damaged, `holding` knows it
/// afterwards.
Result<void> attempt(Rank& rank, Holding& holding, Restoration& restoration, const Health& health, uint32_t number) {
  const SetHealth& set = health.sets[holding.set_index()];
  const Schedule schedule = schedule_for(set, holding.code());
  ExchangeJob job{&set.set, &schedule, {}, holding.member(), number};
  for (const MemberRecord& member : set.set.members) {
    const auto taker = holding.takers().find(member.rank);
    job.ranks.push_back(taker == holding.takers().end() ? UINT32_MAX : taker->second);
  }
  return exchange(rank.transport, job, restoration, rank.progress, rank.cancel);
}

}  // namespace

bool Health::whole() const {
  return unknown.empty() && strangers.empty() &&
         std::all_of(sets.begin(), sets.end(), [](const SetHealth& set) { return set.whole; });
}

bool Health::repairable() const {
  return unknown.empty() && std::all_of(sets.begin(), sets.end(), [](const SetHealth& set) { return set.repairable; });
}

Result<Health> check_parity(Rank& rank) {
  CKPT_TRY_ASSIGN(Holding holding, Holding::gather(rank));
  CKPT_TRY(agree(rank.transport, holding.read_all(rank.progress, rank.cancel)));
  CKPT_TRY_ASSIGN(auto sets, holding.compare(rank.transport));
  return health_of(holding, std::move(sets));
}

Result<Rebuilt> rebuild(Rank& rank, const RebuildOptions& options) {
  if (!options.dry_run) remove_abandoned_parity(rank.folder);
  CKPT_TRY_ASSIGN(Holding holding, Holding::gather(rank));
  if (!holding.strangers().empty())
    return fail(Code::kUsage, holding.strangers().front(),
                fmt::format("is not of this protection of {} ranks", holding.world()));
  CKPT_TRY_ASSIGN(const auto seen, holding.compare(rank.transport));
  // Where nothing seems to be lost, and of what was written since, only reading tells; elsewhere what is read is
  // checked on the way: against the parity file, which is as old as the protection.
  Result<void> read;
  if (holding.has_part() && (holding.suspect() || (!options.dry_run && !has_losses(seen[holding.set_index()]))))
    read = holding.read_all(rank.progress, rank.cancel);
  CKPT_TRY(agree(rank.transport, read));
  Restoration restoration(holding, rank.folder);
  Rebuilt out;
  for (bool again = true; again; ++out.attempts) {
    CKPT_TRY_ASSIGN(auto sets, holding.compare(rank.transport));
    out.health = health_of(holding, std::move(sets));
    if (options.dry_run) return out;
    Result<void> ready;
    bool repairable = false;
    if (holding.has_part()) {
      const SetHealth& set = out.health.sets[holding.set_index()];
      const MemberHealth& me = set.members[holding.member()];
      repairable = set.repairable;
      ready = restoration.begin(repairable && needs_data(me), repairable && needs_parity(me), options.force);
    }
    CKPT_TRY(agree(rank.transport, ready));
    const bool data_was_good = holding.data_is_good(), parity_was_good = holding.parity_is_good();
    Result<void> done = repairable ? attempt(rank, holding, restoration, out.health, out.attempts) : Result<void>();
    const bool worse = holding.data_is_good() != data_was_good || holding.parity_is_good() != parity_was_good;
    // Somebody's damage is a reason to try again, with one more to bring back; any other failure is the end.
    const bool in_vain = !done && !worse && !is_secondary(done.error());
    CKPT_TRY(agree(rank.transport, in_vain ? done : Result<void>()));
    CKPT_TRY_ASSIGN(const auto found, rank.transport.all_gather(worse ? "worse" : ""));
    again = std::any_of(found.begin(), found.end(), [](const std::string& one) { return !one.empty(); });
    if (!again) CKPT_TRY(agree(rank.transport, done));
  }
  CKPT_TRY(agree(rank.transport, restoration.complete()));
  const Result<void> committed = restoration.commit();
  CKPT_TRY(agree(rank.transport, committed));
  CKPT_TRY_ASSIGN(const auto written, rank.transport.all_gather(std::to_string(restoration.written())));
  for (const std::string& bytes : written) out.bytes += std::stoull(bytes);
  for (const SetHealth& set : out.health.sets) {
    for (const MemberHealth& member : set.members) {
      if (!set.repairable || member.folder.empty()) continue;
      if (needs_data(member)) out.data.push_back(member.rank);
      if (needs_parity(member)) out.parity.push_back(member.rank);
    }
  }
  return out;
}

}  // namespace ckpt::parity
