#include "lib/parity/holding.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

namespace ckpt::parity {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

/// What one rank has: its parity files that can be opened.
struct Offer {
  uint64_t epoch = 0;
  uint32_t rank = 0, owner = 0, group = 0;
  std::string record;
};

std::vector<Offer> offers_of(const std::string& said) {
  std::vector<Offer> out;
  const Json json = Json::parse(said);
  for (const Json& one : json["files"])
    out.push_back({one["epoch"], one["rank"], one["owner"], one["group"], one["record"]});
  return out;
}

/// That which most ranks have; of several the newest: an earlier one goes only once the later one is complete.
uint64_t best_epoch(const std::vector<std::string>& said) {
  std::map<uint64_t, size_t> count;
  for (const std::string& text : said) {
    for (const Offer& offer : offers_of(text)) ++count[offer.epoch];
  }
  uint64_t out = 0;
  for (const auto& [epoch, ranks] : count) {
    if (out == 0 || ranks >= count[out]) out = epoch;
  }
  return out;
}

/// Files that came after the protection, or whose modes are others; empty: none.
Result<std::string> change_in(const fs::path& folder, const FileTable& table) {
  std::set<std::string> known;
  for (const FileEntry& entry : table.entries) {
    known.insert(entry.name);
    CKPT_TRY_ASSIGN(const std::string what, difference(folder, entry, false));
    if (what == "has another mode") return (folder / entry.name).string() + ": " + what;
  }
  const auto now = scan_folder(folder);
  if (!now && now.error().sys_errno != 0 && !tells_loss(now.error())) return now.error();
  if (!now) return now.error().text();
  for (const FileEntry& entry : now->entries) {
    if (known.count(entry.name) == 0) return (folder / entry.name).string() + ": is not protected: it came later";
  }
  return std::string();
}

constexpr std::array<std::string_view, 4> kStates = {"whole", "missing", "damaged", "changed"};

}  // namespace

std::string_view state_name(State state) { return kStates[static_cast<size_t>(state)]; }

Result<Holding> Holding::gather(Rank& rank) {
  Holding out;
  out.folder_ = rank.folder;
  std::map<uint64_t, ParityFile> files;
  CKPT_TRY(agree(rank.transport, out.open_files(files)));
  Json mine = {{"files", Json::array()},
               {"folder", rank.folder.string()},
               {"damage", out.finding_},
               {"later", out.later_version_}};
  for (const auto& [epoch, file] : files) {
    mine["files"].push_back({{"epoch", epoch},
                             {"rank", file.rank()},
                             {"owner", file.owner()},
                             {"group", file.group()},
                             {"record", to_json(file.record())}});
  }
  CKPT_TRY_ASSIGN(const auto said,
                  rank.transport.all_gather(mine.dump(-1, ' ', false, Json::error_handler_t::replace)));
  Result<void> done = out.choose(rank, files, said);
  if (done && out.has_part()) done = out.look_at_data(rank);
  CKPT_TRY(agree(rank.transport, done));
  return out;
}

/// Those that can be used, by epoch.
Result<void> Holding::open_files(std::map<uint64_t, ParityFile>& files) {
  auto note_loss = [&](const Error& error) -> Result<void> {
    const bool later = error.code == Code::kUnsupported && error.sys_errno == 0;
    if (!later && !tells_loss(error)) return error;
    if (finding_.empty()) parity_ = State::kDamaged, finding_ = error.text(), later_version_ = later;
    return {};
  };
  const auto paths = find_parity_files(folder_);
  if (!paths) return note_loss(paths.error());
  for (const fs::path& path : *paths) {
    auto file = ParityFile::open(path);
    if (!file) {
      CKPT_TRY(note_loss(file.error()));
      continue;
    }
    files.emplace(file->record().epoch, std::move(*file));  // a copy of it with another's name does not count
  }
  return {};
}

Result<void> Holding::choose(Rank& rank, std::map<uint64_t, ParityFile>& files, const std::vector<std::string>& said) {
  epoch_ = best_epoch(said);
  if (epoch_ == 0) {
    for (const std::string& one : said) {
      const Json json = Json::parse(one);
      if (const std::string damage = json["damage"]; !damage.empty())
        return fail(json["later"] ? Code::kUnsupported : Code::kCorrupt, "", "no parity file can be used: " + damage);
    }
    return Error(Code::kNotFound, rank.folder.string(), "nobody has parity of it").with_hint("ckpt protect makes it");
  }
  std::map<uint32_t, std::string> records;
  CKPT_TRY(take_records(said, records));
  std::sort(sets_.begin(), sets_.end(),
            [](const SetRecord& a, const SetRecord& b) { return a.members.front().rank < b.members.front().rank; });
  hand_out_parts(said);
  find_own_part(rank.transport.rank());
  if (!part_) return {};
  for (const std::string& text : said) {
    for (const Offer& offer : offers_of(text)) {
      const bool ours = offer.epoch == epoch_ && offer.record == records[set().members.front().rank];
      if (ours && offer.owner != 0) owners_.insert(offer.owner), groups_.insert(offer.group);
    }
  }
  CKPT_TRY_ASSIGN(code_, set().code());
  return take_file(rank, files);
}

Result<void> Holding::take_records(const std::vector<std::string>& said, std::map<uint32_t, std::string>& records) {
  std::set<uint32_t> ranks;  // of all sets
  for (uint32_t at = 0; at < said.size(); ++at) {
    for (const Offer& offer : offers_of(said[at])) {
      if (offer.epoch != epoch_) continue;
      const auto record = record_from_json(offer.record);
      if (!record) return fail(Code::kCorrupt, "", "a parity file contradicts itself");
      if (const auto [other, made] = takers_.emplace(offer.rank, at); !made) {
        auto folder = [&](uint32_t who) { return Json::parse(said[who])["folder"].get<std::string>(); };
        return fail(Code::kUsage, folder(at),
                    fmt::format("has the parity of rank {}, and so has {}", offer.rank, folder(other->second)));
      }
      const auto [known, added] = records.emplace(record->members.front().rank, offer.record);
      if (!added && known->second != offer.record)
        return fail(Code::kCorrupt, "", "parity files of one set contradict each other");
      if (!added) continue;
      bool fits = world_ == 0 || world_ == record->world;
      for (const MemberRecord& member : record->members) fits = ranks.insert(member.rank).second && fits;
      if (!fits) return fail(Code::kCorrupt, "", "parity files contradict each other");
      sets_.push_back(*record);
      world_ = record->world;
    }
  }
  return {};
}

/// Those without a part: first everybody his own, then what is left over.
void Holding::hand_out_parts(const std::vector<std::string>& said) {
  std::set<uint32_t> taken, free;
  for (const auto& [part, who] : takers_) taken.insert(who);
  for (uint32_t part = 0; part < world_; ++part) {
    if (takers_.count(part) == 0) free.insert(part);
  }
  for (const bool own : {true, false}) {
    for (uint32_t who = 0; who < said.size() && !free.empty(); ++who) {
      if (taken.count(who) != 0 || (own && free.count(who) == 0)) continue;
      const uint32_t part = own ? who : *free.begin();
      takers_.emplace(part, who);
      taken.insert(who), free.erase(part);
    }
  }
  for (uint32_t who = 0; who < said.size(); ++who) {
    if (taken.count(who) == 0) strangers_.push_back(Json::parse(said[who])["folder"]);
  }
}

void Holding::find_own_part(uint32_t own) {
  for (const auto& [part, who] : takers_) {
    if (who != own) continue;
    for (size_t i = 0; i < sets_.size(); ++i) {
      for (uint32_t member = 0; member < sets_[i].members.size(); ++member) {
        if (sets_[i].members[member].rank == part) part_ = {i, member};
      }
    }
  }
}

Result<void> Holding::take_file(const Rank& rank, std::map<uint64_t, ParityFile>& files) {
  const auto file = files.find(epoch_);
  if (file == files.end()) return {};
  if (file->second.rank() != set().members[member()].rank || to_json(file->second.record()) != to_json(set()))
    return fail(Code::kCorrupt, rank.folder.string(), "its parity file and those of the others contradict each other");
  file_.emplace(std::move(file->second));
  parity_ = State::kWhole, finding_.clear();
  table_ = file_->table(), data_sums_ = file_->data_sums();
  return {};
}

void Holding::note(State& state, State what, const std::string& finding) {
  const bool is_first = finding_.empty() || (state == State::kChanged && what == State::kDamaged);
  state = what;
  if (is_first) finding_ = finding;
}

Result<void> Holding::look_at_data(Rank& rank) {
  struct stat st {};
  if (::stat(folder_.c_str(), &st) != 0) {
    const Error error = sys_error(folder_.string(), "cannot be looked at");
    if (!tells_loss(error)) return error;
    note(data_, State::kMissing, folder_.string() + ": is missing");
    return {};
  }
  if (!file_) return look_at_unprotected(rank);
  data_ = State::kWhole;
  for (const FileEntry& entry : table_.entries) {
    CKPT_TRY_ASSIGN(const std::string what, difference(folder_, entry, true));
    CKPT_TRY_ASSIGN(const std::string more, difference(folder_, entry, false));
    suspect_ = suspect_ || more == "was written since";
    if (what.empty()) continue;
    note(data_, State::kDamaged, (folder_ / entry.name).string() + ": " + what);
    return {};
  }
  CKPT_TRY_ASSIGN(const std::string change, change_in(folder_, table_));
  if (!change.empty()) note(data_, State::kChanged, change);
  run_.emplace(folder_, table_);
  return {};
}

/// The folder is there, its parity file is not: whether it is what was protected the other members' records tell.
Result<void> Holding::look_at_unprotected(Rank& rank) {
  if (parity_ == State::kMissing) note(parity_, State::kMissing, folder_.string() + ": its parity file is missing");
  auto table = scan_folder(folder_);
  const MemberRecord& me = set().members[member()];
  auto is_other = [&](const std::string& what) { note(data_, State::kDamaged, folder_.string() + ": " + what); };
  if (!table && table.error().sys_errno != 0 && !tells_loss(table.error())) return table.error();
  if (!table)
    is_other(table.error().text());  // a loss, or a kind of file that was never protected
  else if (table->run_bytes() != me.bytes)
    is_other("is not what was protected");
  if (data_ == State::kDamaged) return {};
  table_ = std::move(*table);
  run_.emplace(folder_, table_);
  data_sums_.clear();
  std::vector<std::byte> bytes(set().block);
  for (uint64_t chunk = 0; chunk < code().data_chunks(); ++chunk) {
    for (uint64_t block = 0; block < set().blocks(); ++block) {
      CKPT_TRY(rank.cancel.check());
      const MutableByteSpan part = std::span(bytes).first(set().block_bytes(block));
      if (Result<void> read = run_->read(chunk * set().chunk + block * set().block, part); !read) {
        if (!tells_loss(read.error())) return read;
        is_other(read.error().text());
        return {};
      }
      data_sums_.push_back(crc32c(0, part));
    }
  }
  if (digest_of(data_sums_) == me.digest)
    data_ = State::kWhole;
  else
    is_other("is not what was protected");
  return {};
}

Result<void> Holding::read(uint32_t row, uint64_t block, MutableByteSpan out) {
  const Symbol symbol = code().symbol(member(), row);
  if (symbol.kind == Symbol::Kind::kParity) {
    Result<void> done = file_->read_block(symbol.index, block, out);
    if (!done && tells_loss(done.error())) note(parity_, State::kDamaged, done.error().text());
    return done;
  }
  Result<void> done = run_->read(symbol.index * set().chunk + block * set().block, out);
  if (done && crc32c(0, out) != data_sums_[symbol.index * set().blocks() + block]) {
    const uint64_t at = symbol.index * set().chunk + block * set().block;
    done = fail(Code::kCorrupt, run_->name_at(at), "its bytes are not those that were protected");
  }
  if (!done && tells_loss(done.error())) note(data_, State::kDamaged, done.error().text());
  return done;
}

Result<void> Holding::read_all(ProgressSink& progress, const Cancel& cancel) {
  if (!has_part()) return {};
  std::vector<std::byte> bytes(set().block);
  for (uint32_t row = 0; row < code().rows(); ++row) {
    const Symbol::Kind kind = code().symbol(member(), row).kind;
    if (kind == Symbol::Kind::kNone) continue;
    for (uint64_t block = 0; block < set().blocks(); ++block) {
      CKPT_TRY(cancel.check());
      if (kind == Symbol::Kind::kData ? !data_is_good() : !parity_is_good()) break;
      const size_t size = set().block_bytes(block);
      if (Result<void> done = read(row, block, std::span(bytes).first(size)); !done && !tells_loss(done.error()))
        return done;
      progress.advance(size);
    }
  }
  return {};
}

Result<std::vector<SetHealth>> Holding::compare(Transport& transport) const {
  Json mine = {{"data", static_cast<int>(data_)},
               {"parity", static_cast<int>(parity_)},
               {"finding", finding_},
               {"folder", folder_.string()}};
  CKPT_TRY_ASSIGN(const auto said, transport.all_gather(mine.dump(-1, ' ', false, Json::error_handler_t::replace)));
  std::vector<SetHealth> out;
  for (const SetRecord& set : sets_) {
    SetHealth health;
    health.set = set;
    std::vector<Loss> losses;
    health.whole = true;
    for (const MemberRecord& record : set.members) {
      MemberHealth& member = health.members.emplace_back();
      member.rank = record.rank, member.node = record.place.node;
      if (const auto taker = takers_.find(record.rank); taker != takers_.end()) {
        const Json it = Json::parse(said[taker->second]);
        member.data = static_cast<State>(it["data"].get<int>());
        member.parity = static_cast<State>(it["parity"].get<int>());
        member.finding = it["finding"], member.folder = it["folder"];
      } else {
        member.finding = fmt::format("rank {}: nobody has its folder", record.rank);
      }
      const bool data = member.data == State::kWhole || member.data == State::kChanged;
      losses.push_back({!data, member.parity != State::kWhole});
      health.whole = health.whole && member.data == State::kWhole && member.parity == State::kWhole;
    }
    CKPT_TRY_ASSIGN(const ErasureCode code, set.code());
    const auto schedule = recovery_schedule(code, set.nodes(), losses);
    health.repairable = schedule.has_value();
    std::set<uint32_t> from;
    for (const Chain& chain : schedule.value_or(Schedule{})) {
      for (const Sum::Term& hop : chain.hops) from.insert(set.members[hop.member].rank);
    }
    health.from.assign(from.begin(), from.end());
    out.push_back(std::move(health));
  }
  return out;
}

}  // namespace ckpt::parity
