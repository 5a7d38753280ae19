#include "lib/flash/joint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <set>
#include <thread>

#include "formats/format.h"
#include "lib/base/clock.h"
#include "lib/base/hex.h"
#include "lib/base/io.h"
#include "lib/base/replace_file.h"
#include "lib/base/staged_dir.h"
#include "lib/flash/catalog.h"
#include "lib/flash/heartbeat.h"
#include "lib/flash/latest.h"
#include "lib/flash/merge.h"
#include "lib/tensor/read.h"

namespace ckpt::flash {

namespace fs = std::filesystem;

namespace {

constexpr const char* kAttempt = ".ckpt-joint-";
constexpr const char* kOver = ".ckpt-joint-over-";  ///< one that is being removed
constexpr const char* kRanks = "ranks-";
constexpr const char* kPart = "part-";
constexpr const char* kWritten = "written-";  ///< the part is complete and durable, and its agent is done with it
constexpr const char* kDeclined = "declined-";
constexpr auto kPause = std::chrono::milliseconds(20);
constexpr uint64_t kMostRanksBytes = uint64_t{1} << 33;
constexpr uint64_t kMostHashed = uint64_t{256} << 20;  ///< by a node before the others hear of it

/// The number behind `prefix`; nullopt: the name is another one.
std::optional<uint32_t> number_behind(const std::string& name, const char* prefix) {
  const size_t length = std::char_traits<char>::length(prefix);
  if (name.compare(0, length, prefix) != 0 || name.size() == length || name.size() > length + 9 ||
      name.find_first_not_of("0123456789", length) != std::string::npos)
    return std::nullopt;
  return static_cast<uint32_t>(std::stoul(name.substr(length)));
}

/// All or nothing under its name.
Result<void> put_file(const fs::path& folder, const std::string& name, const std::string& content) {
  return io::replace_file(folder / name, content, {0600, false});
}

/// What a folder has. kNotFound: it is gone. It is opened anew: that is when a network's file system asks its server,
/// where the names that it knows may be some seconds old.
Result<std::set<std::string>> names_in(const fs::path& folder) {
  std::set<std::string> out;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec))
    out.insert(it->path().filename().string());
  if (!ec) return out;
  return sys_error(ec.value() == ESTALE ? ENOENT : ec.value(), folder.string(), "cannot list");
}

/// What an attempt has. kNotFound: it is over. Where nothing is said of the leader's ranks, in two listings that are
/// whole, its folder is there for what somebody late has written. Any other error says nothing of it.
Result<std::set<std::string>> names_in_attempt(const fs::path& folder) {
  const std::string leader = std::string(kRanks) + "0";
  for (bool again = false;; again = true) {
    CKPT_TRY_ASSIGN(auto names, names_in(folder));
    struct stat st {};
    if (names.count(leader) != 0 || ::lstat((folder / leader).c_str(), &st) == 0) return names;
    if (errno != ENOENT || again) return sys_error((folder / leader).string(), "cannot be looked for");
  }
}

bool is_over(const Result<std::set<std::string>>& attempt) {
  return !attempt && attempt.error().code == Code::kNotFound;
}

Result<RanksRecord> read_ranks(const fs::path& path) {
  CKPT_TRY_ASSIGN(const std::string text, io::read_file(path, kMostRanksBytes));
  return decode_ranks(as_bytes(text));
}

/// Of one node.
struct Node {
  uint32_t first = 0;  ///< its lowest rank, which names its files
  RanksRecord ranks;
};

class Joint {
 public:
  Joint(const PersistRequest& request, fs::path folder, const JointControl& control, const Cancel& cancel)
      : request_(request),
        folder_(std::move(folder)),
        control_(control),
        cancel_(cancel),
        // Of the leader its own part is not the end: it puts all of them together.
        heartbeat_(folder_, first_rank(), control.silent_us, first_rank() == 0 ? kWritten : "", cancel) {}

  /// What every agent does, the leader too: after it this node's part is on disk. Where it fails the others are told.
  Result<PersistReport> take_part() {
    auto report = write_part();
    control_.release();
    if (const auto trouble = heartbeat_.trouble(); !report && trouble)
      report.error().message += fmt::format("; its sign of life failed: {}", trouble->text());
    if (report)
      CKPT_TRY(put_file(folder_, kWritten + std::to_string(first_rank()), ""));
    else
      decline({folder_, request_.step}, first_rank(), report.error().text());
    return report;
  }

  /// No sign of life any more.
  void end() { heartbeat_.end(); }

  /// Of the leader, once it has taken part.
  Result<void> put_together(PersistReport& report) {
    Stopwatch watch;
    for (const Node& node : nodes_) CKPT_TRY(wait_for_part(node));
    report.path = request_.directory / folder_name(request_.step);
    CKPT_TRY_ASSIGN(StagedDir staged, StagedDir::create(report.path, true));
    CKPT_TRY(staged.share());
    Merge merge(request_.format, *owners_, staged.path());
    for (Node& node : nodes_) CKPT_TRY(take_files(node, merge));
    CKPT_TRY(merge.write_metadata(report.notes));
    CKPT_TRY(write_ranks(staged.path(), report.notes));
    CKPT_TRY(check(staged.path()));
    report.verify_us += watch.lap_us();
    CKPT_TRY(cancel_.check());
    CKPT_TRY(staged.commit(merge.last_file(), true));
    if (request_.advances) CKPT_TRY(advance(request_.directory, request_.step, request_.keep, report.notes));
    report.sync_us += watch.lap_us();
    return {};
  }

  /// Of the others: until the leader has ended it, one way or the other.
  Result<void> wait_for_end(PersistReport& report) {
    while (!is_over(look())) {
      auto paused = pause("the agent of rank 0 has not finished");
      if (!paused && !is_over(look())) return paused;
    }
    (void)names_in(request_.directory);
    report.path = request_.directory / folder_name(request_.step);
    auto whole = read_ranks(report.path / kRanksFile);
    if (whole && holds(*whole, report.ranks)) return {};
    if (!whole && whole.error().code != Code::kNotFound) return whole.error();
    return fail(Code::kMismatch, report.path.string(), "was given up by the agent of rank 0, which says why");
  }

 private:
  uint32_t first_rank() const { return request_.ranks.front().rank; }

  Result<PersistReport> write_part() {
    CKPT_TRY(heartbeat_.begin());
    CKPT_TRY(publish());
    deadline_us_ = monotonic_us() + control_.joining_us;  // the others can join from here on
    control_.published();
    CKPT_TRY(wait_for_ranks());
    CKPT_TRY(control_.joined());
    PersistRequest part = request_;
    part.part.emplace(Part{folder_ / (kPart + std::to_string(first_rank())), *owners_});
    auto report = persist(part, heartbeat_.stop());
    if (const auto others = heartbeat_.check(); !report && !others) return others.error();  // that is why
    if (!report && report.error().code == Code::kNotFound && is_over(look())) return given_up();
    return report;
  }

  Result<void> publish() {
    RanksRecord record{request_.step, request_.world, {}};
    for (const Held& held : request_.ranks) {
      CKPT_TRY_ASSIGN(std::string objects, read_objects(held));
      CKPT_TRY_ASSIGN(auto hashes, hash_small(held));
      record.ranks.push_back({held.rank, held.segment->layout_text(), std::move(objects), std::move(hashes), {}});
    }
    return put_file(folder_, kRanks + std::to_string(first_rank()), encode_ranks(record));
  }

  /// So that no other node keeps what it has alike. Zeros: it is not said, as the others wait for this. What a node may
  /// hash its ranks share, so that replicas hash the same tensors.
  Result<std::vector<Hash128>> hash_small(const Held& held) const {
    const uint64_t most = kMostHashed / request_.ranks.size();
    std::vector<Hash128> out;
    uint64_t hashed = 0;
    for (const LayoutTensor& tensor : held.segment->layout().tensors) {
      Hash128& hash = out.emplace_back();
      if (tensor.bytes > std::min(kMostOwnTensor, most - hashed)) continue;
      hashed += tensor.bytes;
      const uint64_t at = held.segment->buffer_offset(held.buffer) + tensor.offset;
      CKPT_TRY_ASSIGN(hash, hash_of(held, at, tensor.bytes, cancel_));
    }
    return out;
  }

  /// Until every rank of the job has been published; then it is known who writes what.
  Result<void> wait_for_ranks() {
    std::set<uint32_t> ranks;
    while (ranks.size() < request_.world) {
      CKPT_TRY_ASSIGN(const auto names, names_now());
      for (const std::string& name : names) {
        const auto first = number_behind(name, kRanks);
        if (!first || std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& node) { return node.first == *first; }))
          continue;
        CKPT_TRY_ASSIGN(RanksRecord record, read_ranks(folder_ / name));
        if (record.step != request_.step || record.world != request_.world)
          return fail(Code::kMismatch, (folder_ / name).string(), "is of another step or job");
        for (const RankRecord& rank : record.ranks) {
          if (!ranks.insert(rank.rank).second)
            return fail(Code::kMismatch, "", fmt::format("two agents say that rank {} is theirs", rank.rank));
        }
        nodes_.push_back({*first, std::move(record)});
      }
      CKPT_TRY(look_for_decline(names));
      if (ranks.size() == request_.world) break;
      CKPT_TRY(pause(fmt::format("{} of {} ranks' agents have joined", ranks.size(), request_.world)));
    }
    std::vector<RankRecord> all;
    for (const Node& node : nodes_) all.insert(all.end(), node.ranks.ranks.begin(), node.ranks.ranks.end());
    std::sort(all.begin(), all.end(), [](const RankRecord& a, const RankRecord& b) { return a.rank < b.rank; });
    CKPT_TRY_ASSIGN(owners_, Ownership::of(all));
    deadline_us_ = monotonic_us() + control_.writing_us;
    std::vector<uint32_t> others;
    for (const Node& node : nodes_) others.push_back(node.first);
    if (first_rank() != 0) others = {0};  // the leader sees to all others
    heartbeat_.watch(others);
    return {};
  }

  /// `names_in_attempt`; `pause` says why it could not be seen, should that last.
  Result<std::set<std::string>> look() {
    auto names = names_in_attempt(folder_);
    unseen_ = names ? "" : "; " + names.error().text();
    return names;
  }

  Error given_up() const { return Error(Code::kMismatch, folder_.string(), "was given up by the agent of rank 0"); }

  /// Empty where it cannot be seen for now.
  Result<std::set<std::string>> names_now() {
    auto names = look();
    if (names) return names;
    if (is_over(names)) return given_up();
    return std::set<std::string>();
  }

  Result<void> look_for_decline(const std::set<std::string>& names) const {
    for (const std::string& name : names) {
      const auto rank = number_behind(name, kDeclined);
      if (!rank) continue;
      CKPT_TRY_ASSIGN(const std::string why, io::read_file(folder_ / name, 1 << 16));
      return fail(Code::kMismatch, fmt::format("the agent of rank {}", *rank), "says: " + why);
    }
    return {};
  }

  Result<void> wait_for_part(const Node& node) {
    for (;;) {
      CKPT_TRY_ASSIGN(const auto names, names_now());
      if (names.count(kWritten + std::to_string(node.first)) != 0) return {};
      CKPT_TRY(look_for_decline(names));
      CKPT_TRY(pause(fmt::format("the agent of rank {} has not written its part", node.first)));
    }
  }

  Result<void> pause(const std::string& what) const {
    if (auto alive = heartbeat_.check(); !alive) {
      alive.error().message += unseen_;
      return alive;
    }
    if (monotonic_us() >= deadline_us_) return fail(Code::kMismatch, "", what + " in time" + unseen_);
    std::this_thread::sleep_for(kPause);
    return {};
  }

  // --- the whole ---

  Result<void> take_files(Node& node, Merge& merge) const {
    const fs::path part = folder_ / (kPart + std::to_string(node.first));
    CKPT_TRY_ASSIGN(RanksRecord written, read_ranks(part / kRanksFile));
    if (written.step != request_.step || written.ranks.size() != node.ranks.ranks.size())
      return fail(Code::kMismatch, part.string(), "is not what its agent said it would be");
    CKPT_TRY(merge.take(part, node.first));
    node.ranks = std::move(written);
    return {};
  }

  /// A replica gets the hash of what was written in its place, with a note where that is another, unless it is kept.
  Result<void> write_ranks(const fs::path& staged, std::vector<std::string>& notes) {
    RanksRecord record{request_.step, request_.world, {}};
    for (Node& node : nodes_) {
      auto& ranks = node.ranks.ranks;
      std::move(ranks.begin(), ranks.end(), std::back_inserter(record.ranks));
    }
    std::sort(record.ranks.begin(), record.ranks.end(),
              [](const RankRecord& a, const RankRecord& b) { return a.rank < b.rank; });
    std::map<std::string, Hash128> written;
    for (RankRecord& rank : record.ranks) {
      CKPT_TRY_ASSIGN(const BufferLayout layout, decode_layout(as_bytes(rank.layout)));
      if (rank.hashes.size() != layout.tensors.size())
        return fail(Code::kCorrupt, kRanksFile, fmt::format("of rank {} lacks hashes", rank.rank));
      for (size_t i = 0; i < layout.tensors.size(); ++i) {
        const LayoutTensor& tensor = layout.tensors[i];
        const auto [at, first] = written.try_emplace(part_key(tensor), rank.hashes[i]);
        const auto own = rank.own.find(static_cast<uint32_t>(i));
        const bool same = at->second == rank.hashes[i], kept = own != rank.own.end();
        if (!same) notes.push_back(note_of_other_bytes(tensor, owners_->rank_of(tensor), rank.rank, kept));
        if (same && kept) rank.own.erase(own);
        if (!kept) rank.hashes[i] = at->second;
      }
    }
    const fs::path path = staged / kRanksFile;
    CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(path, O_WRONLY | O_CREAT | O_EXCL, 0666));
    return io::write_all(fd.get(), as_bytes(encode_ranks(record)), path.string());
  }

  /// The bytes were read again by who wrote them; here it is that all are found.
  static Result<void> check(const fs::path& staged) {
    CKPT_TRY_ASSIGN(const tensor::Catalog catalog, formats::open_checkpoint(staged, {}));
    for (const tensor::Tensor& tensor : catalog.tensors) CKPT_TRY(tensor::check_readable(catalog, tensor));
    return {};
  }

  /// Whether `whole` has what this node has written.
  bool holds(const RanksRecord& whole, const RanksRecord& own) const {
    if (whole.step != own.step) return false;
    return std::all_of(own.ranks.begin(), own.ranks.end(), [&](const RankRecord& rank) {
      const auto found = std::find_if(whole.ranks.begin(), whole.ranks.end(),
                                      [&](const RankRecord& other) { return other.rank == rank.rank; });
      const auto layout = decode_layout(as_bytes(rank.layout));
      if (found == whole.ranks.end() || found->layout != rank.layout || found->objects != rank.objects || !layout)
        return false;
      for (size_t i = 0; i < layout->tensors.size() && i < rank.hashes.size() && i < found->hashes.size(); ++i) {
        if (owners_->rank_of(layout->tensors[i]) == rank.rank && !(found->hashes[i] == rank.hashes[i])) return false;
      }
      return true;
    });
  }

  const PersistRequest& request_;
  fs::path folder_;
  const JointControl& control_;
  const Cancel& cancel_;
  uint64_t deadline_us_ = 0;
  std::string unseen_;  ///< why nothing was seen of the attempt when it was last looked at
  std::vector<Node> nodes_;
  std::optional<Ownership> owners_;
  Heartbeat heartbeat_;
};

/// "iter_0000005-" and 16 digits of its own, so that nobody takes it for an earlier one.
Result<fs::path> make_attempt(const fs::path& directory, uint64_t step) {
  CKPT_TRY_ASSIGN(const std::string nonce, random_hex(8));
  const fs::path out = directory / fmt::format("{}{}-{}", kAttempt, folder_name(step), nonce);
  if (::mkdir(out.c_str(), 0700) != 0) return sys_error(out.string(), "cannot make");
  return out;
}

std::optional<Attempt> attempt_of(const fs::path& path) {
  const std::string name = path.filename().string();
  unsigned long long step = 0, nonce = 0;
  if (name.rfind(kAttempt, 0) != 0) return std::nullopt;
  const std::string rest = name.substr(std::char_traits<char>::length(kAttempt));
  if (std::sscanf(rest.c_str(), "iter_%llu-%16llx", &step, &nonce) != 2 ||
      rest != fmt::format("{}-{:016x}", folder_name(step), nonce))
    return std::nullopt;
  return Attempt{path, step};
}

/// Attempts, and what is left of some.
std::vector<fs::path> folders_in(const fs::path& directory) {
  std::vector<fs::path> out;
  std::error_code ec;
  for (fs::directory_iterator it(directory, ec), end; !ec && it != end; it.increment(ec)) {
    // A link, or what somebody else could write to, is none.
    struct stat st {};
    if (it->path().filename().string().rfind(kAttempt, 0) == 0 && ::lstat(it->path().c_str(), &st) == 0 &&
        S_ISDIR(st.st_mode) && st.st_uid == ::geteuid() && (st.st_mode & 0022) == 0)
      out.push_back(it->path());
  }
  return out;
}

/// Others may still write to it: from here on nothing is made under its name.
void remove_attempt(const fs::path& folder) {
  const std::string name = folder.filename().string().substr(std::char_traits<char>::length(kAttempt));
  const fs::path away = attempt_of(folder) ? folder.parent_path() / (kOver + name) : folder;
  std::error_code ec;
  if (away != folder) fs::rename(folder, away, ec);
  fs::remove_all(ec ? folder : away, ec);
}

}  // namespace

std::optional<Attempt> find_attempt(const fs::path& directory) {
  std::vector<Attempt> found;
  for (const fs::path& folder : folders_in(directory)) {
    auto one = attempt_of(folder);
    if (one && names_in_attempt(folder)) found.push_back(std::move(*one));
  }
  return found.size() == 1 ? std::optional(std::move(found.front())) : std::nullopt;
}

Result<PersistReport> lead_persist(const PersistRequest& request, const JointControl& control, const Cancel& cancel) {
  for (const fs::path& old : folders_in(request.directory)) remove_attempt(old);
  for (const fs::path& dir : find_abandoned_staging(request.directory)) (void)remove_abandoned_staging(dir);
  CKPT_TRY_ASSIGN(const fs::path folder, make_attempt(request.directory, request.step));
  Joint joint(request, folder, control, cancel);
  auto report = joint.take_part();
  if (report) {
    auto done = joint.put_together(*report);
    if (!done) report = std::move(done).error();
  }
  joint.end();
  remove_attempt(folder);
  return report;
}

Result<PersistReport> join_persist(const PersistRequest& request, const Attempt& attempt, const JointControl& control,
                                   const Cancel& cancel) {
  Joint joint(request, attempt.folder, control, cancel);
  auto report = joint.take_part();
  if (auto ended = report ? joint.wait_for_end(*report) : Result<void>(); !ended) report = ended.error();
  joint.end();
  // Where its leader could not rename it, this one may have written to it after that.
  if (is_over(names_in_attempt(attempt.folder))) remove_attempt(attempt.folder);
  return report;
}

void decline(const Attempt& attempt, uint32_t rank, const std::string& why) {
  (void)put_file(attempt.folder, kDeclined + std::to_string(rank), why);
}

}  // namespace ckpt::flash
